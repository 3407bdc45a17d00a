package lane

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// overduePeriod is how often a worker without a free slot looks for calls whose time is over.
	overduePeriod = 250 * time.Millisecond
	// overdueAgain is when a lane is looked at again that could not be claimed, or still has such
	// calls.
	overdueAgain = time.Second
	// maxOverdue bounds the lanes that are remembered; what is more is read later.
	maxOverdue = 8192
	// overdueReads bounds the messages that are read at a time.
	overdueReads = 256
)

// overdue answers calls whose time is over, or that are cancelled, in lanes that nobody holds
// because all slots of all workers are taken. A worker without a free slot reads what waits in its
// pool, each message once, and remembers which lanes have such calls and when. Then it claims the
// lane like any other, answers what needs no slot, and lets the lane go.
type overdue struct {
	holder *Holder
	cursor uint64 // what is before was read
	lanes  map[protocol.LaneHash]dueLane
}

// dueLane is a lane with a call that may have to be answered at a time.
type dueLane struct {
	lane protocol.Lane
	at   time.Time
}

// answerOverdue does so until ctx ends.
func (h *Holder) answerOverdue(ctx context.Context) {
	o := overdue{holder: h, lanes: map[protocol.LaneHash]dueLane{}}
	for pause.For(ctx, overduePeriod) {
		if h.slots.available() > 0 {
			continue // nothing waits
		}
		if err := o.look(ctx); err != nil {
			h.options.Logger.DebugContext(ctx, "calls that wait cannot be looked at", slog.Any("error", err))
		}
	}
}

// look reads what came since the last time, and answers what is due.
func (o *overdue) look(ctx context.Context) error {
	if err := o.read(ctx); err != nil {
		return err
	}
	for hash, due := range o.lanes {
		if time.Now().Before(due.at) {
			continue
		}
		next, err := o.answer(ctx, due.lane)
		if err != nil {
			return err
		}
		if next.IsZero() {
			delete(o.lanes, hash)
			continue
		}
		o.lanes[hash] = dueLane{lane: due.lane, at: next}
	}
	return nil
}

// read remembers the lanes of messages of the pool that were not read before.
func (o *overdue) read(ctx context.Context) error {
	filter := o.holder.options.Fleet.PoolFilter(o.holder.options.Pool)
	for n := 0; n < overdueReads && len(o.lanes) < maxOverdue; n++ {
		msg, err := o.holder.store.Next(ctx, filter, o.cursor)
		if err != nil || msg == nil {
			return err
		}
		o.cursor = msg.Sequence + 1
		o.remember(msg)
	}
	return nil
}

// remember books when a call has to be answered that a message is, or is about.
func (o *overdue) remember(msg *jetstream.RawStreamMsg) {
	lane := Named(msg.Header)
	at := time.Now()
	if o.holder.options.Fleet.ParseMailboxSubject(msg.Subject).Kind != protocol.EntryCancel {
		call, err := protocol.DecodeCall(msg.Data)
		if err != nil {
			return // no call, or one that whoever gets the lane answers
		}
		e := core.Entry{Call: call}
		after, bounded := e.DueAfter()
		if !bounded {
			return
		}
		lane, at = call.Lane(), at.Add(after-o.holder.clock.Age(msg.Time))
	}
	if before, known := o.lanes[lane.Hash()]; lane != "" && (!known || at.Before(before.at)) {
		o.lanes[lane.Hash()] = dueLane{lane: lane, at: at}
	}
}

// answer answers what is due in a lane, and returns when to look again; zero is never.
func (o *overdue) answer(ctx context.Context, lane protocol.Lane) (again time.Time, err error) {
	again = time.Now().Add(overdueAgain)                      // should whoever holds the lane lose it
	visited, err := o.holder.visit(ctx, lane, func(l *held) { //nolint:contextcheck // the lane has its own
		l.marks.refusing = true
		l.refuse()
		l.tries(sweepTrouble, l.sweep)
		if l.schedule.Len() > 0 || l.pinned() || !l.leave() {
			l.letGo(false, l.redeliver) // where it was in the line
		}
		switch {
		case l.marks.due.After(again):
			again = l.marks.due
		case l.marks.due.IsZero() && l.mail.caughtUp:
			again = time.Time{}
		}
	})
	if err == nil && !visited && o.isEmpty(ctx, lane) {
		return time.Time{}, nil
	}
	return again, err
}

// isEmpty reports whether nothing waits in a lane any more.
func (o *overdue) isEmpty(ctx context.Context, lane protocol.Lane) bool {
	s, pool := o.holder.store, o.holder.options.Pool
	ready, err := s.Next(ctx, s.Fleet.ReadySubject(pool, lane.Hash()), 0)
	if err != nil || ready != nil {
		return false
	}
	entry, err := s.Next(ctx, s.Fleet.MailboxFilter(pool, lane.Hash()), 0)
	return err == nil && entry == nil
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
	_, _ = h.visit(ctx, lane, func(l *held) { //nolint:contextcheck // the lane has its own; it is tried again
		inline := l.pinned()
		if e := l.schedule.Find(protocol.CallID(l.ready.header.Get(protocol.HeaderCall))); inline && e != nil {
			known, err := l.isSettled(e, nil)
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

// visit claims a lane without a slot, reads what waits in it, and has do let it go. It reports
// false when the lane is not there or cannot be claimed.
func (h *Holder) visit(ctx context.Context, lane protocol.Lane, do func(*held)) (bool, error) {
	found, err := h.store.Next(ctx, h.options.Fleet.ReadySubject(h.options.Pool, lane.Hash()), 0)
	if err != nil || found == nil {
		return false, err // without a ready message the caretaker makes one
	}
	l := h.beginVisit(&readyMessage{
		seq: found.Sequence, header: found.Header, body: found.Data, stored: found.Time, lane: lane, hash: lane.Hash(),
	})
	if l == nil {
		return false, nil
	}
	defer h.group.Done()
	defer h.forget(l)
	defer l.cancel(nil)
	defer l.mail.close()
	// Whoever holds the lane does it, if somebody does.
	if err := h.take(l.ctx, l.claim); err != nil { //nolint:contextcheck // the lane has its own
		l.cancel(nil)
		h.forget(l)
		h.disownAfter(l, err) //nolint:contextcheck // the lane has its own
		return false, nil
	}
	l.openReady()
	if err := l.feed(); err != nil {
		l.letGo(false, l.redeliver) //nolint:contextcheck // the lane has its own
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
