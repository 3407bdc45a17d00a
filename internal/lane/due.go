package lane

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
)

// Calls that wait are answered when their time is over, whatever they wait for: a call before them,
// or a slot. l.due is when the first of those in hand may have to be; it may be too early, never
// too late.

// expects books that a call waits, which may have to be answered before it starts.
func (l *held) expects(e *core.Entry) {
	after, bounded := e.DueAfter()
	if !bounded {
		return
	}
	at := time.Now().Add(after - l.holder.clock.Age(e.Accepted))
	if l.due.IsZero() || at.Before(l.due) {
		l.due = at
	}
}

// isDue reports whether the time of a call in hand may be over.
func (l *held) isDue() bool { return !l.due.IsZero() && !time.Now().Before(l.due) }

// expectAnew finds out who is the next to be answered. A call whose time is over, and of which it
// is not known yet whether it was started, is looked at again in a moment.
func (l *held) expectAnew() {
	l.due = time.Time{}
	for _, e := range l.schedule.Entries() {
		if !e.Running {
			l.expects(e)
		}
	}
	if soon := time.Now().Add(faultPause); !l.due.IsZero() && l.isDue() {
		l.due = soon
	}
}

// untilDue is how long the lane may wait, at most d: until a call is due, or it is time to park the
// ready message.
func (l *held) untilDue(d time.Duration) time.Duration {
	if !l.due.IsZero() {
		d = min(d, time.Until(l.due))
	}
	if !l.parked {
		d = min(d, time.Until(l.since.Add(l.parkAfter())))
	}
	return max(d, 0)
}
