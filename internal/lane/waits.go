package lane

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
)

const (
	// hintAfter is how long a lane waits before it listens for new entries:
	// most calls are over sooner, and listening has a price.
	hintAfter = 2 * time.Millisecond
	// firstHintAfter is the same for the only call of a lane that was idle before:
	// most such lanes have no second one while it runs.
	firstHintAfter = 20 * time.Millisecond
	// listensAfter is after how many calls a lane listens although it never had to wait so long.
	listensAfter = 8
	// lookPeriod is how often a held lane looks into its mailbox without a hint, at most: where
	// many lanes are held, they look less often, so that all together make no more
	// than about a hundred looks a second; or ten, on a server that tells everything.
	lookPeriod    = time.Second
	lookPeriodMax = 30 * time.Second
	looksTold     = 100 * time.Millisecond
	looksHinted   = 10 * time.Millisecond
	// faultPause is the pause after an operation of the server failed.
	faultPause = 100 * time.Millisecond
)

// wait waits for something to happen, at most for d.
func (l *held) wait(d time.Duration) {
	if l.mail.subscription == nil {
		if l.served >= listensAfter && l.mail.listen() {
			return // what was stored before has to be read
		}
		d = min(d, l.hintAfter())
	}
	if left := time.Until(l.seat.givingWay); left > 0 {
		d = min(d, left)
	}
	l.park()
	look := time.Now().Add(d)
	l.timer.Reset(l.untilDue(d))
	select {
	case f := <-l.finished:
		l.finish(f)
	case granted := <-l.seat.granted:
		l.seat.wanting = false
		if granted {
			l.seat.free++
		}
	case <-l.mail.wake:
		l.cancelTold()
	case <-l.timer.C:
		if time.Now().Before(look) { // a call is due
			return
		}
		l.mail.refresh()
		l.mail.listen()
	case <-l.ctx.Done():
		return
	}
	for { // whatever else has finished meanwhile
		select {
		case f := <-l.finished:
			l.finish(f)
		default:
			return
		}
	}
}

// hintAfter is how long the lane waits before it listens.
func (l *held) hintAfter() time.Duration {
	if l.served == 0 && !l.frequent && l.schedule.Len() == 1 {
		return firstHintAfter
	}
	return hintAfter
}

// linger keeps an idle lane for a while: long when its sandbox is to stay warm,
// a moment when the lane is used again and again. It reports true when there may
// be work again.
func (l *held) linger() bool {
	d := l.holder.options.Linger
	if l.holder.options.Keeps(l.lane) {
		d, l.idleSince = 2*lookPeriodMax, time.Time{} // asked again before that
	} else if l.holder.mayLinger(l.lane) {
		defer l.holder.lingered()
	} else if d = holdTime; !l.frequent && l.served < 2 {
		return false
	}
	if l.mail.subscription == nil { // entries may have come before it listens
		l.mail.listen()
		return true
	}
	if l.idleSince.IsZero() {
		l.idleSince = time.Now()
	}
	l.park()
	l.timer.Reset(l.untilDue(max(0, min(d-time.Since(l.idleSince), l.holder.lookPeriod()))))
	select {
	case <-l.mail.wake:
		l.cancelTold()
		return true
	case <-l.timer.C:
		l.mail.refresh() // should something not have been told
		return time.Since(l.idleSince) < d
	case <-l.starting.Done():
		return l.ctx.Err() != nil
	}
}

// waitPaused waits until there may be something to do for a paused lane of which nothing runs.
func (l *held) waitPaused() {
	if l.mail.subscription == nil {
		if l.mail.listen(); l.mail.subscription != nil {
			return // entries may have come before it listened
		}
	}
	l.park()
	l.timer.Reset(l.untilDue(l.holder.lookPeriod()))
	select {
	case <-l.mail.wake:
		l.cancelTold()
	case <-l.timer.C:
		l.mail.refresh() // should something not have been told
	case <-l.starting.Done():
	}
}

// lookPeriod is how often each held lane looks into its mailbox without a hint.
func (h *Holder) lookPeriod() time.Duration {
	share := looksTold
	if h.store.Clustered() {
		share = looksHinted
	}
	return min(max(time.Duration(h.Held())*share, lookPeriod), lookPeriodMax)
}

// pause waits a moment after a failure, or for the end of the lane.
func (l *held) pause() { pause.For(l.ctx, faultPause) }
