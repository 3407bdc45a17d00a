package lane

import (
	"math"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// readMarks finds out whether the lane is paused, which calls that are not in hand yet are cancelled, and what was handed back. The marks come with the
// mailbox, so they are looked for only when they may be beyond the window or gone.
func (l *held) readMarks() error {
	o := &l.oversight
	full := l.schedule.len() >= window || l.bytes >= windowBytes
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
	if full && !l.handed {
		if err := l.readHandbacks(); err != nil {
			return err
		}
		l.handed = true
	}
	mark, err := s.Next(l.ctx, fleet.PauseSubject(pool, l.hash), 0)
	if err != nil {
		return err
	}
	l.oversight.paused.Store(mark != nil)
	return nil
}

// readHandbacks reads the marks of deliveries that were handed back: they stand behind all that waited then.
func (l *held) readHandbacks() error {
	o := l.holder.options
	for n := uint64(1); n < l.delivered; n++ {
		mark, err := l.holder.store.Next(l.ctx, o.Fleet.HandbackSubject(o.Pool, l.hash, l.ready, n), 0)
		if err != nil {
			return err
		}
		if mark != nil {
			read := fromStream(mark)
			l.accept(&read)
		}
	}
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
	return l.oversight.paused.Load() && l.schedule.len() > 0 && l.starting.Err() == nil
}

// refuse answers the calls that will not be started in any case, wherever they
// stand: what has no effect need not wait for its turn.
func (l *held) refuse() {
	if !l.oversight.refusing && !l.oversight.paused.Load() && !l.isDue() {
		return
	}
	l.oversight.refusing = false
	defer l.expectAnew()
	for _, e := range slices.Clone(l.schedule.entries) {
		if e.running {
			continue
		}
		e.mayHaveStarted = e.mayHaveStarted && l.startedBefore() && !l.cannotHaveStarted(e)
		if e.mayHaveStarted && e.blockers > 0 { // whether it was started shows when its turn comes
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
func (l *held) giveRefusal(e *entry, result *protocol.Result) bool {
	defer l.over(lookupTrouble, e)
	for {
		known, err := l.holder.store.HasResult(l.ctx, e.call.SessionID, e.call.ID)
		if known {
			l.wasSettled(e)
			return true
		}
		if err == nil {
			break
		}
		if !l.alive() {
			return false
		}
		l.complain(lookupTrouble, e, err)
		l.pause()
	}
	return l.settle(e, result)
}
