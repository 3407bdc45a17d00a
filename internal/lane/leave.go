package lane

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/pause"
)

// leave gives the lane up when nothing of it runs. It reports false when the attempt failed and the
// lane is still held.
func (l *held) leave() bool {
	l.holder.executor.Release(l.lane) // before anybody else can claim the lane
	if !l.tries(sweepTrouble, l.sweep) {
		return false
	}
	switch {
	case l.lacks != nil:
		l.letGo(false, l.offer)
		return true
	case l.pinned() || l.unresolved():
		l.letGo(false, l.redeliver)
		return true
	}
	return l.release()
}

// unresolved reports whether entries wait that a holder before this one, which was lost, may have
// started: only the claim says so to the next holder.
func (l *held) unresolved() bool {
	return l.schedule.Unresolved(l.claim.Interrupted, l.mail.caughtUp)
}

// release lets the lane go in which nothing waits, or which goes to the end of the line. It reports
// false when the lane is lost before it begins.
func (l *held) release() bool {
	if !l.isFresh() { // removing what does not matter any more took its time; this removal matters
		return false
	}
	core.Release(leaver{l})
	return true
}

// leaver is a lane that is let go.
type leaver struct{ *held }

// RemoveReady implements [core.Leaver]. From the first try on, the ready message may be gone, and a
// new one with a call of its own be there.
func (l leaver) RemoveReady() bool {
	for {
		err := l.holder.store.Remove(l.ctx, l.ready.seq)
		if err == nil {
			return true
		}
		l.complain("ready message cannot be removed", err)
		if pause.For(l.ctx, faultPause); !l.isFresh() {
			return false
		}
	}
}

// Look implements [core.Leaver].
func (l leaver) Look() (found, ok bool) {
	ok = l.tries("last look into the mailbox failed", func() (err error) {
		found, err = l.holder.store.Waits(l.ctx, l.holder.options.Pool, l.hash)
		return err
	})
	return found, ok
}

// MakeReady implements [core.Leaver].
func (l leaver) MakeReady() bool {
	return l.tries("lane cannot be made ready", func() error {
		_, err := l.holder.store.MakeReady(l.ctx, l.holder.options.Pool, l.lane)
		return err
	})
}

// RemoveClaim implements [core.Leaver].
func (l leaver) RemoveClaim() {
	l.holder.store.DropClaim(l.claim.epoch.Load())
	l.holder.store.Settle(l.ready.ack)
}

// tries does something until it succeeds. It reports false when the lane is lost before.
func (l *held) tries(trouble string, do func() error) bool {
	for l.alive() {
		err := do()
		if err == nil {
			return true
		}
		if !l.alive() {
			return false
		}
		l.complain(trouble, err)
		pause.For(l.ctx, faultPause)
	}
	return false
}

func (l *held) redeliver(ctx context.Context) error {
	return l.holder.store.Redeliver(ctx, l.holder.options.Pool, l.ready.seq)
}

// letGo removes the claim and then has the lane delivered to somebody, if deliver is not nil. Where
// calls may have been started that have no result, as those that were killed, the claim stays
// without an owner and says so. What fails is tried again until this life ends, and the claim with
// it.
func (l *held) letGo(killed bool, deliver func(context.Context) error) {
	s := l.holder.store
	tries := func(do func(context.Context) error) bool {
		for l.life.trusted(time.Now()) && !s.NC.IsClosed() {
			err := do(l.life.ctx)
			if err == nil {
				return true
			}
			l.complain("lane cannot be handed over", err)
			pause.For(l.life.ctx, faultPause)
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
		l.holder.forget(l) // it may be delivered here
		tries(deliver)
	}
}
