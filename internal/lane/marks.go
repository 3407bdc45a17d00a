package lane

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A paused lane has a pause mark in its mailbox. Whoever holds it starts nothing and keeps it as
// long as calls wait there, without a slot: so what ran before goes on, cancelled and expired calls
// are still answered, and the ready message stays where it is. A lane in which nothing waits is let
// go; the mark alone does not make it ready.

// marks is what a lane knows of pauses, and of calls that end without being started. One goroutine
// owns it, but for what is atomic.
type marks struct {
	paused   atomic.Bool // as the mark was read last
	asked    atomic.Bool // somebody has asked about the lane since the marks were read
	read     time.Time   // when those beyond the window were read last
	due      time.Time   // when a call that waits may have to be answered; zero when none does
	refusing bool        // a call was cancelled since cancelled calls were answered last
	// early are calls that were cancelled before they were read: the marks stand behind them, maybe
	// beyond the window.
	early map[protocol.CallID]struct{}
}

func (l *held) cancelRequested() {
	for _, id := range l.mail.takeCancels() {
		l.cancelCall(id)
	}
}

func (l *held) cancelCall(id protocol.CallID) {
	e := l.schedule.Find(id)
	if e == nil {
		if l.marks.early == nil {
			l.marks.early = map[protocol.CallID]struct{}{}
		}
		l.marks.early[id] = struct{}{}
		return
	}
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	e.Cancelled = true
	l.marks.refusing = true
	if e.Stop != nil {
		e.Stop(ErrCancelled)
	}
}

// readMarks finds out whether the lane is paused, and which calls that are not in hand yet are
// cancelled. The marks come with the mailbox, so they are looked for only when they may be beyond
// the window or gone.
func (l *held) readMarks() error {
	beyond := l.isFull() && (time.Since(l.marks.read) >= lookPeriod || !l.mail.knowsCancels())
	if asked := l.marks.asked.Swap(false); !asked && !beyond && !l.marks.paused.Load() {
		return nil
	}
	err := l.readBeyond()
	if err != nil {
		l.marks.asked.Store(true)
		return err
	}
	l.marks.read = time.Now()
	return nil
}

func (l *held) readBeyond() error {
	s, pool := l.holder.store, l.holder.options.Pool
	if l.isFull() && (!s.Consistency().TellsAll() || !l.mail.knowsCancels()) {
		l.mail.listenAnew()
		_, err := s.EachSubject(l.ctx, s.Fleet.CancelSubject(pool, l.hash, "*"), math.MaxInt, func(subject string) {
			l.cancelCall(s.Fleet.ParseMailboxSubject(subject).CallID)
		})
		if err != nil {
			return err
		}
		l.mail.listed = true
	}
	mark, err := s.Next(l.ctx, s.Fleet.PauseSubject(pool, l.hash), 0)
	if err == nil {
		l.marks.paused.Store(mark != nil)
	}
	return err
}

// refuse answers the calls that will not be started in any case, wherever they stand: what has no
// effect need not wait for its turn.
func (l *held) refuse() {
	isDue := !l.marks.due.IsZero() && !time.Now().Before(l.marks.due)
	if !l.marks.refusing && !l.marks.paused.Load() && !isDue {
		return
	}
	l.marks.refusing = false
	defer l.expectAnew()
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if !l.schedule.MayRefuse(e) {
			continue
		}
		result := l.Refusal(e)
		if result == nil {
			continue
		}
		if !l.giveRefusal(e, result) {
			return // the lane is lost
		}
		l.conclude(e)
	}
}

// giveRefusal stores the result of a call that is not started, unless it has one already.
func (l *held) giveRefusal(e *core.Entry, result *protocol.Result) bool {
	known := false
	ok := l.tries("result cannot be looked up", func() (err error) {
		known, err = l.isSettled(e)
		return err
	})
	if ok && known {
		l.wasSettled(e)
		return true
	}
	return ok && l.settle(e, result)
}

// expects notes that a call waits, which may have to be answered before it starts. The time that
// it notes may be too early, never too late.
func (l *held) expects(e *core.Entry) {
	after, bounded := e.DueAfter()
	if !bounded {
		return
	}
	at := time.Now().Add(after - l.holder.clock.Age(e.Accepted))
	if l.marks.due.IsZero() || at.Before(l.marks.due) {
		l.marks.due = at
	}
}

// expectAnew finds out who is the next to be answered. A call whose time is over, and of which it
// is not known yet whether it was started, is looked at again in a moment.
func (l *held) expectAnew() {
	l.marks.due = time.Time{}
	for _, e := range l.schedule.Entries() {
		if !e.Running {
			l.expects(e)
		}
	}
	if now := time.Now(); !l.marks.due.IsZero() && !now.Before(l.marks.due) {
		l.marks.due = now.Add(faultPause)
	}
}
