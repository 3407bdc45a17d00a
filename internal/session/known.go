package session

import (
	"context"
	"errors"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/system/recent"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Bounds of what a [Known] has, in sessions and bytes.
const (
	maxKnown      = 5000
	maxKnownBytes = 32 << 20
)

// Known is what the journals of sessions were last read to say, so that a [Reader] continues there:
// a session that is described again and again costs what it has done meanwhile. Whether it may be
// seen is not known here. What is in it is not changed any more.
type Known struct {
	*recent.Cache[protocol.SessionID, *folded]
}

// NewKnown returns a Known of no session.
func NewKnown() Known {
	return Known{recent.New[protocol.SessionID, *folded](maxKnown, maxKnownBytes)}
}

// put replaces what is known of a session, by more.
func (k Known) put(id protocol.SessionID, now *folded) {
	if before, is := k.Get(id); !is || before.last <= now.last {
		k.Put(id, now, now.size())
	}
}

// size is about how many bytes the description takes.
func (i *folded) size() int {
	const each = 512
	bytes := each
	for n := range i.History {
		bytes += each + len(i.History[n].Input)
	}
	s := &i.state
	for _, e := range slices.Concat(s.Jobs, s.Questions, s.Unknown, s.Changes, s.Calls()) {
		bytes += each + len(e.Input) + len(e.Arguments) + len(e.Text) + len(e.Content) + len(e.Call) + len(e.Diff)
	}
	return bytes
}

// copied is a description that is extended while others read this one.
func (i *folded) copied() *folded {
	made := i.shown()
	made.starts, made.origins = slices.Clone(i.starts), slices.Clone(i.origins)
	made.state = i.state.Clone()
	return made
}

// shown is a description that callers may change, but for what they do not get.
func (i *folded) shown() *folded {
	made := *i
	made.History = slices.Clone(i.History)
	return &made
}

// known is the description of a session up to the end of its journal: as it is known, and what came
// since.
func (r *Reader) known(ctx context.Context, id protocol.SessionID) (*folded, error) {
	before, is := r.Known.Get(id)
	if is {
		msg, err := r.events.GetMsg(ctx, before.last, jetstream.WithGetMsgSubject(wire.EventSubject(r.fleet, id)))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, err
		}
		if err != nil || msg.Sequence != before.last { // it was removed
			r.Known.Drop(id, before)
			is = false
		}
	}
	if !is {
		before = &folded{Session: report.Session{SessionID: id}}
	}
	info, err := r.extended(ctx, before, false)
	if info != before && info.Messages > 0 { // also one that was read in part is continued
		r.Known.put(id, info)
	}
	if err != nil {
		return nil, err
	}
	return info.shown(), nil
}

// light is an event without the data of its images and attachments.
func light(e *loop.Event) *loop.Event {
	if e.Image == nil && len(e.Attachments) == 0 {
		return e
	}
	without := *e
	if e.Image != nil {
		image := *e.Image
		image.Data = nil
		without.Image = &image
	}
	without.Attachments = slices.Clone(e.Attachments)
	for i := range without.Attachments {
		without.Attachments[i].Data = nil
	}
	return &without
}
