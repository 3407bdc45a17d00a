package lane

import (
	"math"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// readMarks finds out whether the lane is paused, and which calls that are not in hand yet are
// cancelled. The marks come with the mailbox, so they are looked for only when they may be beyond
// the window or gone.
func (l *held) readMarks() error {
	o := &l.oversight
	full := l.schedule.Len() >= window || l.bytes >= windowBytes
	beyond := full && (time.Since(o.read) >= lookPeriod || !l.mail.knowsCancels())
	if asked := o.asked.Swap(false); !asked && !beyond && !o.paused.Load() {
		return nil
	}
	if err := l.readBeyond(full); err != nil {
		o.asked.Store(true)
		return err
	}
	o.read = time.Now()
	return nil
}

func (l *held) readBeyond(full bool) error {
	s, fleet, pool := l.holder.store, l.holder.options.Fleet, l.holder.options.Pool
	if full && (s.Clustered() || !l.mail.knowsCancels()) {
		l.mail.hearAnew()
		_, err := s.EachSubject(l.ctx, fleet.CancelSubject(pool, l.hash, "*"), math.MaxInt, func(subject string) {
			l.heed(fleet.ParseMailboxSubject(subject))
		})
		if err != nil {
			return err
		}
		l.mail.listed = true
	}
	mark, err := s.Next(l.ctx, fleet.PauseSubject(pool, l.hash), 0)
	if err != nil {
		return err
	}
	l.oversight.paused.Store(mark != nil)
	return nil
}

// heed acts on a request to cancel that was listed.
func (l *held) heed(what protocol.MailboxEntry) {
	if what.Kind == protocol.EntryCancel {
		l.cancelCall(what.CallID)
	}
}

// cancelEarly books that a call is cancelled that is not in hand yet.
func (o *oversight) cancelEarly(id protocol.CallID) {
	if o.early == nil {
		o.early = map[protocol.CallID]struct{}{}
	}
	o.early[id] = struct{}{}
}

// staysPaused reports whether the lane is kept although nothing of it may start.
func (l *held) staysPaused() bool {
	return l.oversight.paused.Load() && l.schedule.Len() > 0 && l.starting.Err() == nil
}

// refuse answers the calls that will not be started in any case, wherever they
// stand: what has no effect need not wait for its turn.
func (l *held) refuse() {
	if !l.oversight.refusing && !l.oversight.paused.Load() && !l.isDue() {
		return
	}
	l.oversight.refusing = false
	defer l.expectAnew()
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if e.Running {
			continue
		}
		e.MayHaveStarted = e.MayHaveStarted && !l.schedule.CannotHaveStarted(e)
		if e.MayHaveStarted && e.Blocked() { // whether it was started shows when its turn comes
			continue
		}
		result := l.refusal(e)
		if result == nil {
			continue
		}
		if !l.giveRefusal(e, result) {
			return // the lane is lost
		}
		l.book(e)
	}
}

// giveRefusal stores the result of a call that is not started, unless it has one already.
func (l *held) giveRefusal(e *core.Entry, result *protocol.Result) bool {
	defer l.over(lookupTrouble, e)
	for {
		known, err := l.isSettled(e, nil)
		if known {
			l.wasSettled(e)
			return true
		}
		if err == nil {
			return l.settle(e, result)
		}
		if !l.alive() {
			return false
		}
		l.complain(lookupTrouble, e, err)
		l.pause()
	}
}
