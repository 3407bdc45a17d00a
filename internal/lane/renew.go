package lane

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/pause"
)

// assure makes sure of the lease of a message that has waited for long before it was
// delivered. What the server keeps of a delivery, for its own restart or for the next
// leader, is not when it was made but when the message was stored: until the first renewal, such
// a lease is over as soon as the leader changes. One that seems to be of the future was stored under a leader with another clock,
// and may be as old. It reports false when the lane is lost.
func (l *held) assure() bool {
	if waited := l.holder.clock.Now().Sub(l.stored) - time.Since(l.claimed); waited.Abs() < l.lease.margin()/2 {
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
		pause.For(l.ctx, l.lease.length/100)
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
		pause.For(l.ctx, l.lease.length/100)
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
// trusted any more, until ctx ends. It waits for no answer: leases end meanwhile.
func (h *Holder) keepLeases(ctx context.Context) {
	ticker := time.NewTicker(keeperPeriod(h.Lease()))
	defer ticker.Stop()
	h.askConsumer(time.Now()) // lanes may wait for what is known of its leader
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now, length := time.Now(), h.Lease()
		ticker.Reset(keeperPeriod(length))
		h.askConsumer(now)
		h.each(func(l *held) {
			if !l.lease.trusted(now) || l.lease.length > length { // claimed just before that was noticed
				l.abort(ErrLost)
			} else if l.lease.due(now) {
				l.renew(now)
			}
		})
	}
}

// keepInformed hears the marks of the pool, and measures the server's time now and then, until ctx ends.
func (h *Holder) keepInformed(ctx context.Context) {
	ticker := time.NewTicker(keeperPeriod(h.Lease()))
	defer ticker.Stop()
	clockDue := time.Now().Add(clockPeriod)
	gone := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		gone = h.tellStreams(ctx, gone)
		_ = h.alarms.tend(ctx) // until it succeeds, every lane is looked into
		if now := time.Now(); now.After(clockDue) || !h.books.met(h.store.NC.ConnectedServerId()) {
			_ = h.books.sync(ctx, h.store, &h.clock) // the old offset is good enough; until a server is met its books are doubted
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
