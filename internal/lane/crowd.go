package lane

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// crowdFresh is how long what the server said about waiting lanes is believed.
	crowdFresh = quantum / 4
	// crowdWait is how long its answer is waited for.
	crowdWait = quantum / 4
)

// crowd is what a holder without a free slot knows of the lanes that wait for one at the server. It is safe for
// concurrent use.
type crowd struct {
	mu      sync.Mutex
	waiting int       // at most so many lanes
	told    time.Time // when the server said so
	asked   time.Time // when it was asked; zero when nothing is open
}

// othersWait reports whether a lane that has had its share should make way: another one waits for a slot, here or at the server. Each one
// that waits there is told of once.
func (h *Holder) othersWait() bool {
	if h.slots.available() > 0 {
		return false
	}
	if h.slots.inLine() > 0 {
		return true
	}
	wait, ask := h.crowd.next(time.Now())
	if ask {
		h.askCrowd()
	}
	return wait
}

// next reports whether a lane waits that was not told of before, and whether the server has to be asked. When
// it does not answer, one may.
func (c *crowd) next(now time.Time) (waits, ask bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case now.Sub(c.told) < crowdFresh:
		waits = c.waiting > 0
		c.waiting = max(c.waiting-1, 0)
		return waits, false
	case c.asked.IsZero():
		c.asked = now
		return false, true
	case now.Sub(c.asked) < crowdWait:
		return false, false
	default:
		c.asked = now
		return true, true
	}
}

// askCrowd asks the server what waits in the pool.
func (h *Holder) askCrowd() {
	o := h.options
	question := &nats.Msg{Subject: "$JS.API.CONSUMER.INFO." + o.Fleet.CallsStream() + "." + o.Fleet.ReadyConsumer(o.Pool)}
	_, _ = h.store.Replies.Ask(question, func(answer *nats.Msg) { // without a connection nobody says that none waits
		if waiting, ok := readCrowd(answer.Data, h.Held()); ok {
			h.crowd.mu.Lock()
			defer h.crowd.mu.Unlock()
			h.crowd.waiting, h.crowd.told, h.crowd.asked = waiting, time.Now(), time.Time{}
		}
	})
}

// readCrowd reads from the answer to CONSUMER.INFO how many lanes may wait for a slot: none while anybody has asked for one, else those that were
// never delivered, and those that were and are not held here. The latter may be held by others.
func readCrowd(body []byte, held int) (waiting int, ok bool) {
	var info struct {
		Name       string `json:"name"`
		Requests   int    `json:"num_waiting"`
		Pending    int    `json:"num_pending"`
		AckPending int    `json:"num_ack_pending"`
	}
	if err := json.Unmarshal(body, &info); err != nil || info.Name == "" {
		return 0, false
	}
	if info.Requests > 0 {
		return 0, true
	}
	return info.Pending + max(info.AckPending-held, 0), true
}
