package lane

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// lease is the time-bounded right to a lane. It is safe for concurrent use.
type lease struct {
	length time.Duration

	mu     sync.Mutex
	since  time.Time // the server's lease began at this time or later
	before time.Time // what since was before the last renewal
	last   time.Time // when the last renewal that was answered was sent
	// echo says that a renewal may be forgotten after it was answered: servers that
	// agree on it answer before they have. Then the one before it counts.
	echo  bool
	asked time.Time // when the last renewal was sent
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

// holds is trusted, with the lock held. The monotonic clock stands still while a
// machine is suspended, so the wall clock must agree.
func (l *lease) holds(now time.Time) bool {
	passed := max(now.Sub(l.since), now.Round(0).Sub(l.since.Round(0)))
	return passed < l.length-l.margin()
}

// period is how long after a renewal the next one is due. Where the renewal before the last one
// counts, there have to be more of them.
func (l *lease) period() time.Duration {
	if l.echo {
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

// confirm books the answer to a renewal that was sent at the given time. The server
// answers whoever asks, so an answer that comes too late confirms nothing: it is
// somebody else's lease by then.
func (l *lease) confirm(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !sent.After(l.since) || !l.holds(time.Now()) {
		return
	}
	counts := sent
	if l.echo {
		counts = l.last
	}
	if sent.After(l.last) {
		l.last = sent
	}
	if counts.After(l.since) {
		l.before, l.since = l.since, counts
	}
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

// assure makes sure of the lease of a message that has waited for long before it was
// delivered. What the server keeps of a delivery, for its own restart or for the next
// leader, is not when it was made but when the message was stored: until the first renewal, such
// a lease is over as soon as the leader changes. It reports false when the lane is lost.
func (l *held) assure() bool {
	if l.holder.clock.age(l.stored)-time.Since(l.claimed) < l.lease.margin()/2 {
		return true
	}
	for l.alive() {
		sent := time.Now()
		_, err := l.holder.store.replies.request(l.ctx, l.lease.length/12, l.renewal())
		if err == nil {
			l.lease.confirm(sent)
			return true
		}
		wait(l.ctx, l.lease.length/100)
	}
	return false
}

// renewal asks for the message's AckWait to begin anew.
func (l *held) renewal() *nats.Msg { return &nats.Msg{Subject: l.ack, Data: []byte("+WPI")} }

// renew sends a renewal; the answer confirms it. Without a connection nothing is sent,
// nothing confirmed, and the trusted time runs out.
func (l *held) renew(now time.Time) {
	_, _ = l.holder.store.replies.ask(l.renewal(), func(answer *nats.Msg) {
		if !nobodyAnswers(answer) {
			l.lease.confirm(now)
		}
	})
}

// keepLeases renews the leases of all held lanes, and aborts those that are not
// trusted any more, until ctx ends.
func (h *Holder) keepLeases(ctx context.Context) {
	ticker := time.NewTicker(max(h.lease/keeperTicks, time.Millisecond))
	defer ticker.Stop()
	clockDue := time.Now().Add(clockPeriod)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		h.each(func(l *held) {
			if !l.lease.trusted(now) {
				l.abort(ErrLost)
			} else if l.lease.due(now) {
				l.renew(now)
			}
		})
		_ = h.alarms.tend(ctx) // until it succeeds, every lane is looked into
		if now.After(clockDue) {
			_ = h.clock.sync(ctx, h.store.calls) // the old offset is good enough
			clockDue = now.Add(clockPeriod)
		}
	}
}

const (
	// keeperTicks is how many times in a lease the leases of all lanes are looked at.
	keeperTicks = 12
	clockPeriod = 30 * time.Second
)
