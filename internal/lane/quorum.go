package lane

import (
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// In a cluster the leader of the pool's consumer confirms a renewal before the other servers have it.
// One that is cut off from them goes on confirming for seconds, while they choose
// another leader, deliver the lane again, and know nothing of these renewals. So a renewal counts only when
// it is known that the leader was still heard by a majority after it: the same leader, in office since before
// the renewal was sent. Then the majority has the renewal, because it is told everything in order.

// leadership is who leads the pool's consumer, and since when; "" while that is not known.
type leadership string

// askLeader asks whether the leader of the pool's consumer is still followed; the answer makes
// renewals count.
func (h *Holder) askLeader(now time.Time) {
	o := h.options
	question := &nats.Msg{Subject: "$JS.API.CONSUMER.INFO." + o.Fleet.CallsStream() + "." + o.Fleet.ReadyConsumer(o.Pool)}
	_, _ = h.store.Replies.Ask(question, func(answer *nats.Msg) { // without a connection nothing counts
		by, heard, silent, ok := readLeadership(answer.Data)
		h.contact.watch(by, silent, time.Now())
		if !ok {
			return
		}
		if !h.contact.heard(by, now.Add(-heard), time.Now()) {
			return
		}
		h.each(func(l *held) { l.lease.agreed(now.Add(-heard), by) })
	})
}

// hurry has the leader asked before it is time to, because a lane waits for what it says. Where little is going on, the others
// answer it once a second: a renewal has them answer at once. However many lanes wait, one of them does so.
func (l *held) hurry() {
	now := time.Now()
	if l.holder.contact.asks(now, l.lease.slack()) {
		l.renew(now)
		l.holder.askLeader(now)
	}
}

// A leader that stood still finds, when it goes on, what the others sent it just before, and takes it for new: until it hears
// of the one that they have chosen meanwhile, a heartbeat later, it seems to be followed. So renewals do
// not count for that moment.
const (
	// silence is how long a leader that is followed may seem not to be heard: heartbeats come every second.
	silence = 3 * time.Second
	// deposed is how long a leader may not know that it is none any more: more than two heartbeats.
	deposed = 2500 * time.Millisecond
	// hush is how long a server may not be heard of until it may have been replaced as a leader: that takes others 4 s at least.
	hush = 2 * time.Second
	// inOffice is how long a leader has to be followed without a silence until it is not expected to be replaced at any moment.
	inOffice = 10 * time.Second
)

// contact is what a holder knows of the leader of its pool's consumer, and of when the others heard it. It is safe for
// concurrent use.
type contact struct {
	mu    sync.Mutex
	by    leadership
	last  time.Time // when the leader was heard by a majority; zero while that is not known
	told  time.Time // when it said so
	spoke time.Time // when a silence was over; zero while there was none
	begun time.Time // when by was met first
	asked time.Time // when a lane had it asked last
	// watched is when there was word of all servers, from leader; troubled when one of them was silent, or another one led.
	watched, troubled time.Time
	leader            leadership
	// suspect was leading before the silence and is again, or still takes itself for the leader.
	suspect leadership
}

// heard books what by said at now: that a majority heard it at a time. It reports false when that may not be
// so, because by was silent until a moment ago, for so long that another may have been chosen.
func (c *contact) heard(by leadership, at, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.last.IsZero() && (at.Sub(c.last) > silence || now.Sub(c.told) > silence) {
		c.spoke, c.suspect = now, ""
		if by == c.by {
			c.suspect = by
		}
	}
	if by != c.by {
		c.begun = now
	}
	c.by, c.told = by, now
	if at.After(c.last) {
		c.last = at
	}
	return by != c.suspect || now.Sub(c.spoke) >= deposed
}

// settled reports whether the leader has been in office for a while, and heard all the time.
func (c *contact) settled(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.last.IsZero() && now.Sub(c.last) <= silence && now.Sub(c.begun) >= inOffice && now.Sub(c.spoke) >= inOffice
}

// watch books what leader said at now: for how long the server that it has not heard of for longest is silent.
func (c *contact) watch(leader leadership, silent time.Duration, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if leader == "" || leader != c.leader || silent > hush || now.Sub(c.watched) > hush {
		c.troubled = now
	}
	c.leader, c.watched = leader, now
}

// calm reports whether no server can take itself for the leader of anything that the others have another leader for: none
// was silent for so long, and any that had been would know by now.
func (c *contact) calm(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.watched) <= hush && now.Sub(c.troubled) >= deposed
}

// asks reports whether a lane may have the leader asked: none had for a while.
func (c *contact) asks(now time.Time, pause time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.asked) < pause {
		return false
	}
	c.asked = now
	return true
}

// leads is who is known to lead.
func (c *contact) leads() leadership {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}

// readLeadership reads the answer to CONSUMER.INFO: who leads, how long ago the leader heard
// from enough others to make a majority with itself, and from all of them. ok is false when the former is not known.
func readLeadership(body []byte) (by leadership, heard, silent time.Duration, ok bool) {
	var info struct {
		Cluster struct {
			Leader      string `json:"leader"`
			LeaderSince string `json:"leader_since"`
			Replicas    []struct {
				Current bool          `json:"current"`
				Offline bool          `json:"offline"`
				Active  time.Duration `json:"active"` // since it was heard of
			} `json:"replicas"`
		} `json:"cluster"`
	}
	if err := json.Unmarshal(body, &info); err != nil || info.Cluster.Leader == "" {
		return "", 0, never, false
	}
	by = leadership(info.Cluster.Leader + " since " + info.Cluster.LeaderSince)
	followers := len(info.Cluster.Replicas)
	var ages []time.Duration
	for _, r := range info.Cluster.Replicas {
		if r.Current && !r.Offline {
			ages = append(ages, r.Active)
		}
		if r.Offline || !r.Current && r.Active == 0 { // 0 is also what was never heard of
			silent = never
		}
		silent = max(silent, r.Active)
	}
	needed := (followers + 1) / 2
	if len(ages) < needed {
		return by, 0, silent, false
	}
	if needed == 0 { // it keeps the consumer alone
		return by, 0, 0, true
	}
	slices.Sort(ages)
	return by, ages[needed-1], silent, true
}

// never is the age of what was not heard.
const never = time.Duration(math.MaxInt64)
