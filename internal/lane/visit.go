package lane

import (
	"context"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// visit claims a lane without a slot, reads what waits in it, and has do let it go. It reports
// false when the lane is not ready or cannot be claimed: then it is its holder's, if it has one.
func (h *Holder) visit(ctx context.Context, lane protocol.Lane, do func(*held)) (bool, error) {
	ready, err := h.storedReady(ctx, lane.Hash())
	if err != nil || ready == nil {
		return false, err // without a ready message the caretaker makes one
	}
	l := h.beginVisit(ready)
	if l == nil {
		return false, nil
	}
	defer h.group.Done()
	defer h.forget(l)
	defer l.cancel(nil)
	defer l.mail.close()
	if err := h.take(l.ctx, l.claim); err != nil { //nolint:contextcheck // the lane has its own
		l.cancel(nil)
		h.forget(l)
		h.disownAfter(l, err) //nolint:contextcheck // the lane has its own
		return false, nil
	}
	l.openReady()
	if err := l.feed(); err != nil {
		l.letGo(false, l.redeliver)
		return false, err
	}
	do(l)
	return true, nil
}

// beginVisit begins to hold a lane without a slot; nil when it is held here, or the holder drains.
func (h *Holder) beginVisit(ready *readyMessage) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.life == nil || h.draining || h.held[ready.hash] != nil {
		return nil
	}
	l := newHeld(h, h.life, ready)
	l.seat.free = 0
	l.claim.Ready = 0 // whoever is given the ready message tries again in a moment
	h.held[l.hash] = l
	h.group.Add(1)
	return l
}

// storedReady returns the ready message of a lane as it is stored, which nobody was given; nil when
// there is none that names the lane.
func (h *Holder) storedReady(ctx context.Context, hash protocol.LaneHash) (*readyMessage, error) {
	found, err := h.store.Ready(ctx, h.options.Pool, hash)
	if err != nil || found == nil {
		return nil, err
	}
	lane := protocol.LaneOfHeader(found.Header.Get(protocol.HeaderLane))
	if lane.Hash() != hash {
		return nil, nil //nolint:nilnil // none that names the lane is an answer
	}
	return &readyMessage{
		seq: found.Sequence, header: found.Header, body: found.Data, stored: found.Time, lane: lane, hash: hash,
	}, nil
}

// replaceReady replaces a lane's ready message that was delivered, and that nobody acts upon: a
// server on its own that is killed may bring back one that was removed, which is never delivered.
// The lane is claimed meanwhile, so nobody else acts upon it either. A call that it is must have
// its result, or it is left alone.
func (h *Holder) replaceReady(ctx context.Context, lane protocol.Lane) {
	consumer, err := h.store.Consumer(ctx, h.options.Pool)
	if err != nil || consumer == nil {
		return
	}
	_, _ = h.visit(ctx, lane, func(l *held) { // the lane has its own context; it is tried again
		inline := l.pinned()
		if e := l.schedule.Find(protocol.CallID(l.ready.header.Get(protocol.HeaderCall))); inline && e != nil {
			known, err := l.isSettled(e)
			inline = err != nil || !known
		}
		if l.ready.seq > consumer.Delivered.Stream || inline || !l.isFresh() ||
			h.store.Remove(l.ctx, l.ready.seq) != nil {
			l.letGo(false, l.redeliver)
			return
		}
		l.letGo(false, func(ctx context.Context) error {
			_, err := h.store.MakeReady(ctx, h.options.Pool, lane)
			return err
		})
	})
}
