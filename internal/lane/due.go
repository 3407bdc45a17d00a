package lane

import "time"

// Calls that wait are answered when their time is over, whatever they wait for: a call before them, or a slot.
// l.due is when the first of those in hand may have to be; it may be too early, never too late.

// dueAfter is at which age a call that waits has to be answered; ok is false when it may wait for ever.
func (e *entry) dueAfter() (age time.Duration, ok bool) {
	if age = e.call.QueueTimeout.Duration(); age > 0 && !e.mayHaveRun() {
		ok = true
	}
	if !e.call.Deadline.IsZero() {
		if life := max(e.call.Deadline.Sub(e.call.IssuedAt), 0); !ok || life < age {
			age, ok = life, true
		}
	}
	return age, ok
}

// expects books that a call waits, which may have to be answered before it starts.
func (l *held) expects(e *entry) {
	after, bounded := e.dueAfter()
	if !bounded {
		return
	}
	at := time.Now().Add(after - l.holder.clock.Age(e.accepted))
	if l.due.IsZero() || at.Before(l.due) {
		l.due = at
	}
}

// isDue reports whether the time of a call in hand may be over.
func (l *held) isDue() bool { return !l.due.IsZero() && !time.Now().Before(l.due) }

// expectAnew finds out who is the next to be answered. A call whose time is over, and of which it is not known yet whether
// it was started, is looked at again in a moment.
func (l *held) expectAnew() {
	l.due = time.Time{}
	for _, e := range l.schedule.entries {
		if !e.running {
			l.expects(e)
		}
	}
	if soon := time.Now().Add(faultPause); !l.due.IsZero() && l.isDue() {
		l.due = soon
	}
}

// untilDue is how long the lane may wait, at most d.
func (l *held) untilDue(d time.Duration) time.Duration {
	if l.due.IsZero() {
		return d
	}
	return max(min(d, time.Until(l.due)), 0)
}

// cannotHaveStarted reports whether a call before it, which it conflicts with, had no result when it was started here.
func (l *held) cannotHaveStarted(e *entry) bool {
	for _, earlier := range l.schedule.entries {
		if earlier == e {
			return false
		}
		if earlier.unsettled.Load() && earlier.call.ConflictsWith(e.call) {
			return true
		}
	}
	return false
}
