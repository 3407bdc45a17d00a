package lane

import (
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

// leave gives the lane up when nothing of it runs. It reports false when the
// attempt failed and the lane is still held.
func (l *held) leave() bool {
	l.holder.executor.Release(l.lane) // before anybody else can claim the lane
	if l.pinned || l.unresolved() {
		return l.handback()
	}
	return l.release()
}

// unresolved reports whether entries wait that whoever held the lane before may have
// started or settled: only another delivery of the same ready message says so to
// the next holder.
func (l *held) unresolved() bool {
	if !l.settledBefore() {
		return false
	}
	return !l.caughtUp || slices.ContainsFunc(l.schedule.entries, func(e *entry) bool { return e.maySettled })
}

// release removes the ready message and then looks once more; the package
// comment says why no wake-up is lost.
func (l *held) release() bool {
	s := l.holder.store
	if !l.alive() {
		return false
	}
	more, err := l.sweep()
	if err == nil {
		err = s.Remove(l.ctx, l.handbacks...)
	}
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
	if !l.renewed() { // removing what does not matter any more took its time; the next removal matters
		return false
	}
	defer l.over(removalTrouble, l)
	// From the first try on, the ready message may be gone and the lane somebody else's.
	for err := l.removeReady(); err != nil; err = l.removeReady() {
		l.complain(removalTrouble, l, err)
		l.pause()
		if !l.renewed() {
			return true
		}
	}
	l.holder.forget(l)
	if err := l.removeClaim(); err != nil {
		l.warn("mark of the claim cannot be removed", err) // the look finds it, and whoever takes the lane then removes it
	}
	found, err := l.mail.look(l.ctx)
	if err != nil {
		l.warn("last look into the mailbox failed", err)
		found = true // then rather once too often
	}
	if found {
		if err := s.PublishReady(l.ctx, l.holder.options.Pool, l.lane); err != nil {
			l.warn("lane cannot be made ready again", err) // a kick will
		}
	}
	return true
}

// renewed waits until the lease is fresh. It reports false when the lane is lost.
func (l *held) renewed() bool {
	for l.alive() {
		if l.lease.fresh(time.Now()) {
			return true
		}
		l.pause()
	}
	return false
}

// removeReady removes the ready message, and returns when it is gone. The acknowledgement, for the consumer's books, comes after that: a
// message that was acknowledged and is still there would never be delivered again.
func (l *held) removeReady() error {
	if err := l.holder.store.Remove(l.ctx, l.ready); err != nil {
		return err
	}
	_ = l.holder.store.NC.Publish(l.ack, nil) // without it, the consumer forgets the message when the lease ends
	return nil
}

// handback returns a lane to the server, so that another worker gets it at once:
// one whose ready message carries a call that was not started, or one without a
// slot for it. The mark says that this delivery started nothing that is not settled, and that the ready message is not: it stays.
func (l *held) handback() bool {
	if !l.renewed() {
		return false
	}
	s := l.holder.store
	mark := nats.NewMsg(l.holder.options.Fleet.HandbackSubject(l.holder.options.Pool, l.hash, l.ready, l.delivered))
	if _, err := l.sweep(); err != nil {
		l.warn("settled entries cannot be removed", err) // without the mark, the next holder looks for their results
	} else if l.pinned || !l.carries {
		if _, _, err := s.Publish(l.ctx, mark); err != nil {
			l.warn("handback mark cannot be stored", err) // then an attempt is counted that was none
		}
	}
	l.nak()
	return true
}

// nak returns the ready message to the server, which delivers it again, also when whoever sent that does not hold the lane any more.
func (l *held) nak() {
	if err := l.removeClaim(); err != nil {
		l.warn("mark of the claim cannot be removed", err)
		return // whoever got the lane would leave it to the mark
	}
	if !l.lease.fresh(time.Now()) {
		return // it comes back when the lease ends
	}
	if err := l.holder.store.NC.Publish(l.ack, []byte(jetstreamNak)); err != nil {
		l.warn("lane cannot be handed back", err)
	}
}

const jetstreamNak = "-NAK"
