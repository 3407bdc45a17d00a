package lane

import (
	"encoding/json"
	"math"
	"slices"
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

// askConsumer asks whether the pool's consumer still is what it was, and whether its leader is still followed; the latter makes
// renewals count.
func (h *Holder) askConsumer(now time.Time) {
	o := h.options
	question := &nats.Msg{Subject: "$JS.API.CONSUMER.INFO." + o.Fleet.CallsStream() + "." + o.Fleet.ReadyConsumer(o.Pool)}
	_, _ = h.store.Replies.Ask(question, func(answer *nats.Msg) { // without a connection nothing counts
		h.meetConsumer(answer.Data, now, time.Now())
		if !h.store.Clustered() {
			return
		}
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

// hurry asks the leader before it is time to, because a lane waits for the answer. Where little is going on, the other
// servers report to their leader once a second only; a renewal makes them report at once, so one is sent first. However
// many lanes wait, one of them does this for all.
func (l *held) hurry() {
	now := time.Now()
	if l.holder.contact.asks(now, l.lease.slack()) {
		l.renew(now)
		l.holder.askConsumer(now)
	}
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
