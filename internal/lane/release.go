package lane

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tryRelease gives up the lane when none of its calls runs. It reports false when that failed and
// the lane is still held.
func (l *heldLane) tryRelease() bool {
	l.holder.host.Release(l.lane) // before another worker can claim the lane
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

// release releases an empty lane, or a lane that goes to the end of the queue. It reports false
// when the lane is lost before it starts.
func (l *heldLane) release() bool {
	if !l.isFresh() { // the sweep may have taken long, and the deletion that follows must arrive within the lease
		return false
	}
	core.Release(releaser{l})
	return true
}

// releaser is a lane that is being released.
type releaser struct{ *heldLane }

// RemoveReady implements [core.Releaser]. After the first try the ready message may be gone, and a
// new one may be stored, with a call of its own.
func (l releaser) RemoveReady() bool {
	for {
		err := l.holder.store.Remove(l.ctx, l.ready.seq)
		if err == nil {
			return true
		}
		l.logRetry("ready message cannot be removed", err)
		if pause.For(l.ctx, pause.Retry); !l.isFresh() {
			return false
		}
	}
}

// Look implements [core.Releaser].
func (l releaser) Look() (found, ok bool) {
	ok = l.retry("last look into the mailbox failed", func() (err error) {
		found, err = l.holder.store.Consistency().HasEntries(l.ctx, l.holder.options.Pool, l.hash)
		return err
	})
	return found, ok
}

// MakeReady implements [core.Releaser].
func (l releaser) MakeReady() bool {
	return l.retry("lane cannot be made ready", l.makeReadyAgain)
}

// RemoveClaim implements [core.Releaser].
func (l releaser) RemoveClaim() {
	if left := l.claim.Claim; l.spent() > 0 { // calls may start faster if the next holder does not know
		left.Interrupted, left.Spent = false, l.spent()
		l.retry("claim cannot be released", func() error {
			return l.holder.store.EndClaim(l.ctx, l.holder.options.Pool, left, l.claim.epoch.Load())
		})
	} else {
		l.holder.store.DropClaim(l.claim.epoch.Load())
	}
	l.holder.store.Ack(l.ready.ack)
}

// unresolved reports whether calls wait that a previous holder, which was lost, may have started:
// the next holder learns this only from an interrupted claim.
func (l *heldLane) unresolved() bool {
	return l.schedule.Unresolved(l.claim.Interrupted, l.mail.caughtUp)
}

// finishLost waits for the calls that are being killed because the lane is lost or the drain has
// ended. In the second case other workers may start them at once, as further attempts.
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

// handOver deletes the claim, and then has the ready message delivered by deliver, if that is not
// nil. If calls without a result may have been started, such as killed ones, the claim stays,
// marked as interrupted and without an owner. Failed steps are retried until this incarnation ends,
// and its claims with it.
func (l *heldLane) handOver(killed bool, deliver func(context.Context) error) {
	s := l.holder.store
	tries := func(do func(context.Context) error) bool {
		for l.incarnation.isTrusted(time.Now()) && !s.NC.IsClosed() {
			err := do(l.incarnation.ctx)
			if err == nil {
				return true
			}
			l.logRetry("lane cannot be handed over", err)
			pause.For(l.incarnation.ctx, pause.Retry)
		}
		return false
	}
	left := l.claim.Claim
	left.Interrupted, left.Spent = killed || l.unresolved(), l.spent()
	if tries(func(ctx context.Context) error { // in case this worker or its request is lost before the delivery
		return s.RedeliverAfter(ctx, l.holder.options.Pool, l.holder.lease, l.ready.seq)
	}) && tries(func(ctx context.Context) error {
		return s.EndClaim(ctx, l.holder.options.Pool, left, l.claim.epoch.Load())
	}) && deliver != nil {
		l.holder.remove(l) // it may be delivered to this worker
		tries(deliver)
	}
}

// garbage is the mailbox messages that are no longer needed, or not after their call is settled.
// They are deleted without waiting for an ack, because acks would cost the server more than the
// deletions. So a deletion may be lost. Before the release the holder checks which messages are
// left, and deletes these with an ack: in a cluster the next holder trusts what it finds.
type garbage struct {
	store       *store.Store
	settled     settledCalls
	unconfirmed map[uint64]protocol.CallID   // deleted without an ack; "" is of no call
	marks       map[protocol.CallID][]uint64 // of scheduled calls
}

func newGarbage(s *store.Store) garbage {
	return garbage{store: s, unconfirmed: map[uint64]protocol.CallID{}, marks: map[protocol.CallID][]uint64{}}
}

// settledCalls are the last few thousand calls that this holder settled while it held the lane: a
// call that is sent again does not run again, even if a stale read hides its result.
type settledCalls struct {
	last, before map[protocol.CallID]struct{}
	latest       uint64 // the highest sequence in last and before
	middle       uint64 // the highest sequence in before
	forgotten    uint64 // every settled call with a higher sequence is known
}

// maxSettled bounds each half of settledCalls.
const maxSettled = 4096

func (s *settledCalls) add(call protocol.CallID, seq uint64) {
	if s.last == nil || len(s.last) >= maxSettled {
		s.last, s.before = map[protocol.CallID]struct{}{}, s.last
		s.forgotten, s.middle = s.middle, s.latest
	}
	s.last[call] = struct{}{}
	s.latest = max(s.latest, seq)
}

func (s *settledCalls) has(call protocol.CallID) bool {
	_, last := s.last[call]
	_, before := s.before[call]
	return last || before
}

const sweepTrouble = "settled messages cannot be deleted"

// maxUnconfirmed bounds the deletions that may have been lost.
const maxUnconfirmed = 1024

func (g *garbage) needsSweep() bool { return len(g.unconfirmed) >= maxUnconfirmed }

// discard deletes a message of a call, or of none.
func (g *garbage) discard(call protocol.CallID, seq uint64) {
	g.store.DeleteAsync(seq)
	g.unconfirmed[seq] = call
}

// discardCall deletes the messages of a call that is settled.
func (g *garbage) discardCall(e *core.Entry) {
	id := e.Call.ID
	for _, seq := range slices.Concat(e.OwnMarks, g.marks[id]) {
		g.discard(id, seq)
	}
	delete(g.marks, id)
	g.settled.add(id, e.Seq)
	if !e.Inline {
		g.discard(id, e.Seq)
	}
}

// sweep deletes the messages of a mailbox whose deletion was lost, and waits for the acks. Servers
// that answer know the message with sequence floor.
func (g *garbage) sweep(ctx context.Context, filter string, floor uint64) error {
	if len(g.unconfirmed) == 0 {
		return nil
	}
	left, err := g.store.Consistency().StillStored(ctx, filter, floor, g.unconfirmed)
	if err != nil {
		return err
	}
	if err := g.store.Remove(ctx, left...); err != nil {
		return err
	}
	clear(g.unconfirmed)
	return nil
}

func (l *heldLane) sweep() error {
	return l.garbage.sweep(l.ctx, l.mail.filter(), max(l.ready.seq, l.mail.cursor, 1)-1)
}
