package lane

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// backlogFresh is how long what the server said about waiting lanes is believed.
	backlogFresh = quantum / 4
	// backlogWait is how long its answer is waited for.
	backlogWait = quantum / 4
)

// backlog is what a holder without a free slot knows about the lanes that wait at the server for a
// worker. It is safe for concurrent use.
type backlog struct {
	mu      sync.Mutex
	waiting int       // at most so many lanes
	told    time.Time // when the server said so
	asked   time.Time // when it was asked; zero when nothing is open
}

// othersWait reports whether a lane that has had its share of a slot should give it up, because
// another lane waits for one, here or at the server. Each lane that waits at the server makes it
// true once, so that no more lanes make way than wait.
func (h *Holder) othersWait() bool {
	if h.slots.available() > 0 {
		return false
	}
	if h.slots.inLine() > 0 {
		return true
	}
	wait, ask := h.backlog.next(time.Now())
	if ask {
		h.askBacklog()
	}
	return wait
}

// next reports whether a lane waits for which none has made way yet, and whether the server has to
// be asked. When the server does not answer in time, it is taken that one waits.
func (b *backlog) next(now time.Time) (waits, ask bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case now.Sub(b.told) < backlogFresh:
		waits = b.waiting > 0
		b.waiting = max(b.waiting-1, 0)
		return waits, false
	case b.asked.IsZero():
		b.asked = now
		return false, true
	case now.Sub(b.asked) < backlogWait:
		return false, false
	default:
		b.asked = now
		return true, true
	}
}

// askBacklog asks the server what waits in the pool.
func (h *Holder) askBacklog() {
	o := h.options
	question := &nats.Msg{Subject: "$JS.API.CONSUMER.INFO." + o.Fleet.CallsStream() + "." + o.Fleet.ReadyConsumer(o.Pool)}
	_, _ = h.store.Replies.Ask(question, func(answer *nats.Msg) { // without a connection no answer comes, and one is taken to wait
		if waiting, ok := readBacklog(answer.Data, h.Held()); ok {
			h.backlog.mu.Lock()
			defer h.backlog.mu.Unlock()
			h.backlog.waiting, h.backlog.told, h.backlog.asked = waiting, time.Now(), time.Time{}
		}
	})
}

// readBacklog reads from the answer to CONSUMER.INFO how many lanes may wait for a worker: none
// while a pull request of any worker is open, else those that were never delivered, and those that
// were delivered and are not held here (which others may hold).
func readBacklog(body []byte, held int) (waiting int, ok bool) {
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
