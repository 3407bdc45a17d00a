package lane

import (
	"context"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
)

// leave gives the lane up when nothing of it runs. It reports false when the
// attempt failed and the lane is still held.
func (l *held) leave() bool {
	l.holder.executor.Release(l.lane) // before anybody else can claim the lane
	if l.first.pinned || l.unresolved() || l.lacks != nil {
		return l.handOver(false)
	}
	return l.release()
}

// unresolved reports whether entries wait that a holder before this one, which was lost, may have
// started: only the claim says so to the next holder.
func (l *held) unresolved() bool {
	return l.claim.Interrupted && (!l.first.caughtUp ||
		slices.ContainsFunc(l.schedule.Entries(), func(e *core.Entry) bool { return e.MayHaveStarted }))
}

// release removes the ready message and then the claim, and looks once more; the package
// comment says why no wake-up is lost.
func (l *held) release() bool {
	s := l.holder.store
	if !l.alive() {
		return false
	}
	more, err := l.sweep()
	if err != nil {
		l.complain(releaseTrouble, l, err)
		l.pause()
		return false // still held
	}
	l.over(releaseTrouble, l)
	if more && l.starting.Err() == nil {
		l.mail.refresh()
		return false // not idle any more
	}
	if !l.isFresh() { // removing what does not matter any more took its time; the next removal matters
		return false
	}
	defer l.over(removalTrouble, l)
	// From the first try on, the ready message may be gone, and a new one with a call of its own be
	// there.
	for err := s.Remove(l.ctx, l.ready.seq); err != nil; err = s.Remove(l.ctx, l.ready.seq) {
		l.complain(removalTrouble, l, err)
		if l.pause(); !l.isFresh() {
			return true
		}
	}
	s.DropClaim(l.claim.epoch)
	s.Settle(l.ready.ack)
	l.holder.forget(l)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), store.OpTimeout)
	defer cancel()
	for err := l.lookLast(ctx); err != nil; err = l.lookLast(ctx) {
		if l.warn("last look into the mailbox failed", err); !pause.For(ctx, faultPause) {
			break
		}
	}
	return true
}

// lookLast makes the lane ready again if anything is in the mailbox.
func (l *held) lookLast(ctx context.Context) error {
	found, err := l.mail.look(ctx)
	if err != nil || !found {
		return err
	}
	return l.holder.store.PublishReady(ctx, l.holder.options.Pool, l.lane)
}

// isFresh waits until the lease is trusted for long enough that a removal surely arrives before its
// end, even if it is late by one more margin: servers take it from a former holder, too. It reports
// false when the lane is lost.
func (l *held) isFresh() bool {
	for l.alive() {
		if l.life.isFresh(time.Now()) {
			return true
		}
		l.pause()
	}
	return false
}

// handOver returns a lane with calls to the fleet, so that another worker gets it at once.
func (l *held) handOver(killed bool) bool {
	if !killed {
		if _, err := l.sweep(); err != nil || !l.alive() {
			l.complain(releaseTrouble, l, err) // else the next holder would take them for waiting
			l.pause()
			return l.ctx.Err() != nil
		}
	}
	l.killed = killed
	if l.lacks != nil {
		l.letGo(l.offer)
	} else {
		l.letGo(l.redeliver)
	}
	return true
}

// redeliver has the pool's consumer give the ready message to somebody.
func (l *held) redeliver() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), store.OpTimeout)
	defer cancel()
	return l.holder.store.Redeliver(ctx, l.holder.options.Pool, l.ready.seq)
}

// letGo removes the claim and then has the lane delivered to somebody. Where calls may have been
// started that have no result, as those that were killed, the claim stays without an owner and says
// so. What fails is tried again for a moment: then the claim ends with this life.
func (l *held) letGo(deliver func() error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), store.OpTimeout)
	defer cancel()
	s := l.holder.store
	if l.parked { // should this worker be lost before it has the lane delivered
		s.Park(l.ready.ack, l.holder.lease)
	}
	for _, do := range []func() error{
		func() error {
			if !l.killed && !l.unresolved() {
				return s.RemoveClaim(ctx, l.claim.epoch)
			}
			left := l.claim.Claim
			left.Life, left.Interrupted = "", true
			_, _, err := s.PutClaim(ctx, l.holder.options.Pool, &left, l.claim.epoch)
			return err // refused: an earlier try, whose answer was lost
		},
		deliver,
	} {
		for err := do(); err != nil; err = do() {
			if l.warn("lane cannot be handed over", err); !pause.For(ctx, faultPause) {
				return
			}
		}
	}
}
