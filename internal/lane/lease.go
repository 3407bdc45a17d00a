package lane

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
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

// holds is trusted, with the lock held. The monotonic clock stands still while a
// machine is suspended, so the wall clock must agree.
func (l *lease) holds(now time.Time) bool {
	passed := max(now.Sub(l.since), now.Round(0).Sub(l.since.Round(0)))
	return passed < l.length-l.margin()
}

// slack is how much later than a renewal the leader must have been heard: more than a message between servers takes.
func (l *lease) slack() time.Duration { return l.length / 40 }

// period is how long after a renewal the next one is due. Where they count later, there have to be
// more of them.
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

// agreed has the renewals count that are so old that a majority of the servers has them: by has
// been leading since before, and was heard at the given time. Renewals under another leader never count.
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

// assure makes sure of the lease of a message that has waited for long before it was
// delivered. What the server keeps of a delivery, for its own restart or for the next
// leader, is not when it was made but when the message was stored: until the first renewal, such
// a lease is over as soon as the leader changes. It reports false when the lane is lost.
func (l *held) assure() bool {
	if l.holder.clock.Age(l.stored)-time.Since(l.claimed) < l.lease.margin()/2 {
		return true
	}
	for l.alive() {
		sent, by := time.Now(), l.holder.contact.leads()
		_, err := l.holder.store.Replies.Request(l.ctx, l.lease.length/12, l.renewal())
		if err == nil {
			l.lease.confirm(sent, by)
			if !l.holder.store.Clustered() || l.holder.contact.settled(time.Now()) {
				return true
			}
			if by != "" {
				return l.agrees(sent, by)
			}
			l.hurry()
		}
		store.Wait(l.ctx, l.lease.length/100)
	}
	return false
}

// agrees waits until a majority of the servers has the renewal that was sent at the given time, when by was leading. Under
// a leader that is new, or was silent until a moment ago, only that is sure: the next one would deliver the lane once more, at
// once. It reports false when the lane is lost, also because another one leads.
func (l *held) agrees(sent time.Time, by leadership) bool {
	for l.alive() {
		if l.lease.counts(sent) {
			return true
		}
		if l.holder.contact.leads() != by {
			l.abort(ErrLost)
			return false
		}
		l.hurry()
		store.Wait(l.ctx, l.lease.length/100)
	}
	return false
}

// renewal asks for the message's AckWait to begin anew.
func (l *held) renewal() *nats.Msg { return &nats.Msg{Subject: l.ack, Data: []byte("+WPI")} }

// renew sends a renewal; the answer confirms it. Without a connection nothing is sent,
// nothing confirmed, and the trusted time runs out.
func (l *held) renew(now time.Time) {
	by := l.holder.contact.leads()
	_, _ = l.holder.store.Replies.Ask(l.renewal(), func(answer *nats.Msg) {
		if !store.NobodyAnswers(answer) {
			l.lease.confirm(now, by)
		}
	})
}

// keeperPeriod is how often the leases of all lanes are looked at.
func keeperPeriod(lease time.Duration) time.Duration {
	return max(min(lease/keeperTicks, keeperPause), time.Millisecond)
}

// keepLeases renews the leases of all held lanes, and aborts those that are not
// trusted any more, until ctx ends.
func (h *Holder) keepLeases(ctx context.Context) {
	ticker := time.NewTicker(keeperPeriod(h.lease))
	defer ticker.Stop()
	if h.store.Clustered() {
		h.askLeader(time.Now()) // lanes may wait for what is known of it
	}
	clockDue := time.Now().Add(clockPeriod)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		if h.store.Clustered() {
			h.askLeader(now)
		}
		h.each(func(l *held) {
			if !l.lease.trusted(now) {
				l.abort(ErrLost)
			} else if l.lease.due(now) {
				l.renew(now)
			}
		})
		_ = h.alarms.tend(ctx) // until it succeeds, every lane is looked into
		if now.After(clockDue) {
			_ = h.clock.Sync(ctx, h.store.Calls) // the old offset is good enough
			clockDue = now.Add(clockPeriod)
		}
	}
}

const (
	// keeperTicks is how many times in a lease the leases of all lanes are looked at, at least.
	keeperTicks = 12
	// keeperPause is the longest time between two looks: a leader that is asked more seldom seems to be silent.
	keeperPause = time.Second
	clockPeriod = 30 * time.Second
)
