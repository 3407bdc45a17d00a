package session

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nats-io/nats.go/jetstream"

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
// seen is not known here. The zero value is ready, and safe for concurrent use.
type Known struct {
	mu    sync.Mutex
	of    map[protocol.SessionID]*folded
	order []protocol.SessionID // the one that was described last at the end
	bytes int
}

// get is what is known of a session; nil if that is nothing. It is not changed any more.
func (k *Known) get(id protocol.SessionID) *folded {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of[id]
}

// put replaces what is known of a session, by more.
func (k *Known) put(id protocol.SessionID, now *folded) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if before := k.of[id]; before != nil {
		if before.last > now.last {
			return
		}
		k.drop(id)
	}
	if k.of == nil {
		k.of = map[protocol.SessionID]*folded{}
	}
	k.of[id], k.order, k.bytes = now, append(k.order, id), k.bytes+now.size()
	for len(k.order) > 1 && (len(k.order) > maxKnown || k.bytes > maxKnownBytes) {
		k.drop(k.order[0])
	}
}

// forget drops a session: there is none any more, or another one of its name.
func (k *Known) forget(id protocol.SessionID) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(id)
}

func (k *Known) drop(id protocol.SessionID) {
	if of := k.of[id]; of != nil {
		k.bytes -= of.size()
		delete(k.of, id)
		k.order = slices.DeleteFunc(k.order, func(other protocol.SessionID) bool { return other == id })
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
	made := *i
	made.History, made.starts, made.origins = slices.Clone(i.History), slices.Clone(i.starts), slices.Clone(i.origins)
	made.state = i.state.Clone()
	return &made
}

// known is the description of a session up to the end of its journal: as it is known, and what came
// since.
func (r *Reader) known(ctx context.Context, id protocol.SessionID) (*folded, error) {
	info := r.Known.get(id)
	if info != nil {
		msg, err := r.events.GetMsg(ctx, info.last, jetstream.WithGetMsgSubject(wire.EventSubject(r.fleet, id)))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil, err
		}
		if err != nil || msg.Sequence != info.last { // it was removed
			r.Known.forget(id)
			info = nil
		}
	}
	if info == nil {
		info = &folded{Session: report.Session{SessionID: id}}
	} else {
		info = info.copied()
	}
	err := r.extend(ctx, info, false)
	if err == nil || info.Messages > 0 { // one that was read in part is continued
		r.Known.put(id, info)
	}
	if err != nil {
		return nil, err
	}
	return info.copied(), nil // callers add to it
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
