package lane

import (
	"sync"
	"time"
)

// lease is the time-bounded right to a lane. It is safe for concurrent use.
type lease struct {
	length time.Duration

	mu     sync.Mutex
	since  time.Time // the server's lease began at this time or later
	before time.Time // what since was before the last renewal
	last   time.Time // when the last renewal that was answered was sent
	asked  time.Time // when the last renewal was sent
	// shared says that several servers keep the lease. One answers before the others have agreed, so
	// that a renewal waits until it is known that they have (see quorum.go).
	shared  bool
	waiting []answered
}

// answered is a renewal that waits.
type answered struct {
	sent time.Time
	by   leadership // as it was known when it was sent
}

// margin is the end of a lease that is not trusted: room for kills and for
// messages on their way.
func (l *lease) margin() time.Duration { return l.length / 5 }

// trusted reports whether the lane surely belongs to this process at now.
func (l *lease) trusted(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.holds(now)
}

// fresh reports whether the lease is trusted for long enough that a message which ends it surely arrives before it is over, even
// if it is late by one more margin. Servers take such a message from a former holder, too, and would end the next one's lease.
func (l *lease) fresh(now time.Time) bool { return l.trusted(now.Add(l.margin())) }

// holds is trusted, with the lock held. The monotonic clock stands still while a
// machine is suspended, so the wall clock must agree.
func (l *lease) holds(now time.Time) bool {
	passed := max(now.Sub(l.since), now.Round(0).Sub(l.since.Round(0)))
	return passed < l.length-l.margin()
}

// end is until when the lease is trusted, as far as is known now.
func (l *lease) end() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since.Add(l.length - l.margin())
}

// slack is how much later than a renewal the leader must have been heard: more than a message between servers takes.
func (l *lease) slack() time.Duration { return l.length / 40 }

// period is how long after a renewal the next one is due. In a cluster, where a renewal counts only
// some time after it was sent, there have to be more of them.
func (l *lease) period() time.Duration {
	if l.shared {
		return l.length / 4
	}
	return l.length * 2 / 5
}

// due reports whether it is time to renew, and books the renewal as sent at now. One
// that is not answered soon is sent again.
func (l *lease) due(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.last) < l.period() || now.Sub(l.asked) < l.length/keeperTicks {
		return false
	}
	l.asked = now
	return true
}

// confirm books the answer to a renewal that was sent at the given time, when by was known to
// lead. The server answers whoever asks, so an answer that comes too late confirms nothing: it
// is somebody else's lease by then.
func (l *lease) confirm(sent time.Time, by leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !sent.After(l.since) || !l.holds(time.Now()) {
		return
	}
	if sent.After(l.last) {
		l.last = sent
	}
	if l.shared {
		l.waiting = append(l.waiting, answered{sent: sent, by: by})
		return
	}
	l.before, l.since = l.since, sent
}

// agreed makes those renewals count that are old enough for a majority of the servers to have them: the leader by
// was leading already when they were sent, and a majority heard it at the given time. Renewals under another leader
// never count.
func (l *lease) agreed(at time.Time, by leadership) {
	l.mu.Lock()
	defer l.mu.Unlock()
	kept := l.waiting[:0]
	for _, r := range l.waiting {
		switch {
		case r.by != by:
			l.last = time.Time{} // renewed as soon as possible
		case r.sent.Add(l.slack()).After(at):
			kept = append(kept, r)
		case r.sent.After(l.since) && l.holds(time.Now()):
			l.before, l.since = l.since, r.sent
		}
	}
	l.waiting = kept
}

// counts reports whether a renewal that was sent at the given time counts.
func (l *lease) counts(sent time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.since.Before(sent)
}

// doubt takes back renewals that were made after the given time: the server that
// answered them may have died before they were written down. A lease that
// is not known to be older ends.
func (l *lease) doubt(after time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.After(after) {
		l.since, l.before = l.before, time.Time{}
	}
	if l.since.After(after) {
		l.since = time.Time{}
	}
	l.last = l.since
}
