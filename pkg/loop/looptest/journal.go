// Package looptest tests the ports of package loop: [RunJournal] is what every
// [loop.Journal] must pass, and [Journal] is one in memory that does.
package looptest

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var _ loop.Journal = (*Journal)(nil)

// Journal keeps sessions in memory, as JSON, so that events are encoded and decoded as stored ones
// are. The zero value is empty and ready. It is safe for concurrent use and grows without bound.
type Journal struct {
	mu       sync.Mutex
	last     uint64
	sessions map[protocol.SessionID]*stored
}

type stored struct {
	events []json.RawMessage
	last   uint64
}

// Load implements [loop.Journal].
func (j *Journal) Load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	if err := ctx.Err(); err != nil {
		return loop.History{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, ok := j.sessions[session]
	if !ok {
		return loop.History{}, nil
	}
	history := loop.History{Events: make([]loop.Event, len(kept.events)), Last: kept.last}
	for i := range kept.events {
		if err := json.Unmarshal(kept.events[i], &history.Events[i]); err != nil {
			return loop.History{}, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	return history, nil
}

// Append implements [loop.Journal].
func (j *Journal) Append(
	ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event,
) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	encoded := make([]json.RawMessage, len(events))
	for i := range events {
		var err error
		if encoded[i], err = json.Marshal(events[i]); err != nil {
			return 0, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, ok := j.sessions[session]
	if !ok {
		kept = &stored{}
	}
	if kept.last != expected {
		return 0, fmt.Errorf("session %s is at %d, not at %d: %w", session, kept.last, expected, loop.ErrJournalConflict)
	}
	if len(events) == 0 {
		return expected, nil
	}
	if j.sessions == nil {
		j.sessions = make(map[protocol.SessionID]*stored)
	}
	j.last += uint64(len(events))
	kept.events, kept.last = append(kept.events, encoded...), j.last
	j.sessions[session] = kept
	return kept.last, nil
}
