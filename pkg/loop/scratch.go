package loop

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ScratchChange is a change of a session's scratchpad, which is the fold of the journal's changes:
// a fork has what its origin had at that point.
type ScratchChange struct {
	Key string `json:"key"`
	// Value is stored under the key; nil deletes it.
	Value *string `json:"value,omitempty"`
}

// maxScratchKeys bounds the keys of a scratchpad.
const maxScratchKeys = 100

// noteScratch changes the scratchpad.
func (s *session) noteScratch(change *ScratchChange) {
	switch {
	case change == nil:
	case change.Value == nil:
		delete(s.scratch, change.Key)
	default:
		if s.scratch == nil {
			s.scratch = make(map[string]string)
		}
		s.scratch[change.Key] = *change.Value
	}
}

// runScratch carries out those of a step's calls that are about the scratchpad, in their order: one
// reads what those before it wrote.
func (b *batch) runScratch(ctx context.Context) {
	for _, p := range b.asking {
		request, is := p.plan.Session.(wire.ScratchRequest)
		if detached(ctx) {
			return // the next run of the session carries them out
		}
		if is {
			b.oneScratch(ctx, p, request)
		}
	}
}

func (b *batch) oneScratch(ctx context.Context, p *pendingCall, request wire.ScratchRequest) {
	ctx, span := b.startTool(ctx, p)
	defer span.End()
	start := time.Now()
	text, change, failure := b.scratched(request)
	if failure != nil {
		failSpan(span, failure)
		b.settle(p.local(protocol.StatusRejected, "", failure, time.Since(start)))
		return
	}
	event := p.local(protocol.StatusOK, b.keeps(p).fitted(ctx, p.event.CallID, text), nil, time.Since(start))
	event.Scratch = change
	b.settle(event)
}

// scratched answers one request.
func (t *turnRun) scratched(request wire.ScratchRequest) (string, *ScratchChange, *protocol.Error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	pad := t.session.scratch
	value, has := pad[request.Key]
	switch {
	case request.Verb == wire.ScratchList:
		return listScratch(pad), nil, nil
	case request.Verb == wire.ScratchSet && !has && len(pad) >= maxScratchKeys:
		return "", nil, protocol.Errorf(protocol.CodeLimitReached, "The scratchpad has %d keys, which is the maximum: delete one first.", maxScratchKeys)
	case request.Verb == wire.ScratchSet:
		return fmt.Sprintf("[%s is stored]", request.Key), &ScratchChange{Key: request.Key, Value: &request.Value}, nil
	case !has:
		return "", nil, protocol.Errorf(protocol.CodeNotFound, "The scratchpad has no key %q. %s", request.Key, listScratch(pad))
	case request.Verb == wire.ScratchDelete:
		return fmt.Sprintf("[%s is deleted]", request.Key), &ScratchChange{Key: request.Key}, nil
	default:
		return value, nil, nil
	}
}

// listScratch names the keys, with the sizes of their values.
func listScratch(pad map[string]string) string {
	if len(pad) == 0 {
		return "[The scratchpad is empty]"
	}
	lines := []string{"Keys of the scratchpad:"}
	for _, key := range slices.Sorted(maps.Keys(pad)) {
		lines = append(lines, fmt.Sprintf("%s (%d bytes)", key, len(pad[key])))
	}
	return strings.Join(lines, "\n")
}
