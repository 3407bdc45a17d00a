package lane

import (
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// readPause finds out whether the lane is paused. The mark comes with the mailbox, so
// it is looked for only when it may be beyond the window or gone.
func (l *held) readPause() error {
	o := &l.oversight
	beyond := (l.schedule.len() >= window || l.bytes >= windowBytes) && time.Since(o.read) >= lookPeriod
	if asked := o.asked.Swap(false); !asked && !beyond && !o.paused.Load() {
		return nil
	}
	mark, err := l.holder.store.Next(l.ctx, l.holder.options.Fleet.PauseSubject(l.holder.options.Pool, l.hash), 0)
	if err != nil {
		o.asked.Store(true)
		return err
	}
	o.paused.Store(mark != nil)
	o.read = time.Now()
	return nil
}

// staysPaused reports whether the lane is kept although nothing of it may start.
func (l *held) staysPaused() bool {
	return l.oversight.paused.Load() && l.schedule.len() > 0 && l.starting.Err() == nil
}

// refuse answers the calls that will not be started in any case, wherever they
// stand: what has no effect need not wait for its turn.
func (l *held) refuse() {
	if !l.oversight.refusing && !l.oversight.paused.Load() {
		return
	}
	l.oversight.refusing = false
	for _, e := range slices.Clone(l.schedule.entries) {
		if e.running {
			continue
		}
		e.mayHaveStarted = e.mayHaveStarted && l.startedBefore()
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
	for e.maySettled || e.call.Again {
		stored, err := l.holder.store.Result(l.ctx, e.call.SessionID, e.call.ID)
		if stored != nil || errors.Is(err, protocol.ErrInvalidResult) {
			e.settledBefore = true
			l.dropPayload(e)
			return true
		}
		if err == nil {
			break
		}
		if !l.alive() {
			return false
		}
		l.warn("result cannot be looked up", err)
		l.pause()
	}
	return l.settle(e, result)
}
