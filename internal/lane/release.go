package lane

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tryRelease gives the lane up when nothing of it runs. It reports false when the attempt failed
// and the lane is still held.
func (l *heldLane) tryRelease() bool {
	l.holder.host.Release(l.lane) // before anybody else can claim the lane
	if !l.retry(sweepTrouble, l.sweep) {
		return false
	}
	switch {
	case l.unmet != nil:
		l.handOver(false, l.offer)
		return true
	case l.isPinned() || l.unresolved():
		l.handOver(false, l.redeliver)
		return true
	}
	return l.release()
}

// release lets the lane go in which nothing waits, or which goes to the end of the line. It reports
// false when the lane is lost before it begins.
func (l *heldLane) release() bool {
	if !l.isFresh() { // removing what does not matter any more took its time; this removal matters
		return false
	}
	core.Release(releaser{l})
	return true
}

// releaser is a lane that is let go.
type releaser struct{ *heldLane }

// RemoveReady implements [core.Leaver]. From the first try on, the ready message may be gone, and a
// new one with a call of its own be there.
func (l releaser) RemoveReady() bool {
	for {
		err := l.holder.store.Remove(l.ctx, l.ready.seq)
		if err == nil {
			return true
		}
		l.logRetry("ready message cannot be removed", err)
		if pause.For(l.ctx, retryPause); !l.isFresh() {
			return false
		}
	}
}

// Look implements [core.Leaver].
func (l releaser) Look() (found, ok bool) {
	ok = l.retry("last look into the mailbox failed", func() (err error) {
		found, err = l.holder.store.HasEntries(l.ctx, l.holder.options.Pool, l.hash)
		return err
	})
	return found, ok
}

// MakeReady implements [core.Leaver].
func (l releaser) MakeReady() bool {
	return l.retry("lane cannot be made ready", func() error {
		_, err := l.holder.store.MakeReady(l.ctx, l.holder.options.Pool, l.lane)
		return err
	})
}

// RemoveClaim implements [core.Leaver].
func (l releaser) RemoveClaim() {
	l.holder.store.DropClaim(l.claim.epoch.Load())
	l.holder.store.Ack(l.ready.ack)
}

// unresolved reports whether entries wait that a holder before this one, which was lost, may have
// started: only the claim says so to the next holder.
func (l *heldLane) unresolved() bool {
	return l.schedule.Unresolved(l.claim.Interrupted, l.mail.caughtUp)
}

// finishLost waits for what is being killed because the lane was lost, or the holder drains. In the
// second case it may start elsewhere at once, as a further attempt.
func (l *heldLane) finishLost() (left bool) {
	for l.slots.used > 0 {
		l.onFinished(<-l.running.finished)
	}
	if !errors.Is(context.Cause(l.ctx), ErrDraining) || !l.incarnation.isTrusted(time.Now()) {
		return false
	}
	l.holder.host.Release(l.lane)
	l.handOver(true, l.redeliver)
	return true
}

func (l *heldLane) redeliver(ctx context.Context) error {
	return l.holder.store.Redeliver(ctx, l.holder.options.Pool, l.ready.seq)
}

// handOver removes the claim and then has the lane delivered to somebody, if deliver is not nil.
// Where calls may have been started that have no result, as those that were killed, the claim stays
// without an owner and says so. What fails is tried again until this life ends, and the claim with
// it.
func (l *heldLane) handOver(killed bool, deliver func(context.Context) error) {
	s := l.holder.store
	tries := func(do func(context.Context) error) bool {
		for l.incarnation.isTrusted(time.Now()) && !s.NC.IsClosed() {
			err := do(l.incarnation.ctx)
			if err == nil {
				return true
			}
			l.logRetry("lane cannot be handed over", err)
			pause.For(l.incarnation.ctx, retryPause)
		}
		return false
	}
	left := l.claim.Claim
	left.Interrupted = killed || l.unresolved()
	if tries(func(ctx context.Context) error { // should this worker be lost, or its word, before it has the lane delivered
		return s.RedeliverAfter(ctx, l.holder.options.Pool, l.holder.lease, l.ready.seq)
	}) && tries(func(ctx context.Context) error {
		return s.EndClaim(ctx, l.holder.options.Pool, left, l.claim.epoch.Load())
	}) && deliver != nil {
		l.holder.remove(l) // it may be delivered here
		tries(deliver)
	}
}

// Nobody answers the removal of what is settled: that would cost the server more than the removal.
// So one may get lost. Before the lane is let go it is found out which are left, and these are
// removed for sure: on several servers whoever claims the lane next believes what is there.

// garbage is the messages of a lane's mailbox that nobody needs any more, or will not need when
// their call is settled.
type garbage struct {
	settled     settledCalls
	unconfirmed map[uint64]protocol.CallID   // whose removal nobody answers; "" is of no call
	marks       map[protocol.CallID][]uint64 // of calls in hand
}

func newGarbage() garbage {
	return garbage{unconfirmed: map[uint64]protocol.CallID{}, marks: map[protocol.CallID][]uint64{}}
}

// settledCalls are the calls that were settled in this hold, the last few thousand of them: one
// that is sent again does not run again, also where an old answer hides its result.
type settledCalls struct {
	last, before map[protocol.CallID]struct{}
}

// maxSettled bounds each half of them.
const maxSettled = 4096

func (s *settledCalls) add(call protocol.CallID) {
	if s.last == nil || len(s.last) >= maxSettled {
		s.last, s.before = map[protocol.CallID]struct{}{}, s.last
	}
	s.last[call] = struct{}{}
}

func (s *settledCalls) has(call protocol.CallID) bool {
	_, last := s.last[call]
	_, before := s.before[call]
	return last || before
}

const sweepTrouble = "what is settled cannot be removed"

// maxUnconfirmed bounds the removals of which it is not known whether they were applied.
const maxUnconfirmed = 1024

func (g *garbage) needsSweep() bool { return len(g.unconfirmed) >= maxUnconfirmed }

func (l *heldLane) discard(call protocol.CallID, seq uint64) {
	l.holder.store.DeleteAsync(seq)
	l.garbage.unconfirmed[seq] = call
}

func (l *heldLane) discardCall(e *core.Entry) {
	id := e.Call.ID
	for _, seq := range slices.Concat(e.OwnMarks, l.garbage.marks[id]) {
		l.discard(id, seq)
	}
	delete(l.garbage.marks, id)
	l.garbage.settled.add(id)
	if !e.Inline {
		l.discard(id, e.Seq)
	}
}

// sweep removes what is left of what was thrown away, and returns when it is gone.
func (l *heldLane) sweep() error {
	if len(l.garbage.unconfirmed) == 0 {
		return nil
	}
	s := l.holder.store
	left, err := s.StillStored(l.ctx, l.mail.filter(), max(l.ready.seq, l.mail.cursor, 1)-1, l.garbage.unconfirmed)
	if err != nil {
		return err
	}
	if err := s.Remove(l.ctx, left...); err != nil {
		return err
	}
	clear(l.garbage.unconfirmed)
	return nil
}
