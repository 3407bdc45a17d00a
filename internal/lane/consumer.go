package lane

import (
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The leases of a pool are its consumer's, and end by the clock of the server that leads it. Somebody may delete the consumer, or
// shorten its leases, and the clock may be put forward. Then lanes are handed out again that are held. Nobody tells their holders,
// and renewals are answered all the same, so holders look about once a second, and give up what may be somebody else's.

// meetConsumer gives up lanes that the pool's consumer may have handed out again, as the answer to CONSUMER.INFO tells that was asked and
// answered at the given times.
func (h *Holder) meetConsumer(body []byte, asked, answered time.Time) {
	told := readConsumer(body)
	// That there is no consumer is not believed in a cluster: a server may just not know it.
	if told.made == unknown || told.made == gone && h.store.Clustered() {
		return
	}
	if h.books.remade(told.made, h.clock.Now()) {
		h.each(func(l *held) { l.abort(ErrLost) })
	}
	if told.made == gone {
		return
	}
	h.follow(told.lease)
	if leap := h.pace.leap(told.at, asked, answered); leap > h.Lease()/10 {
		h.options.Logger.Warn("clock of the server was put forward: leases have ended", slog.Duration("by", leap))
		h.each(func(l *held) { l.abort(ErrLost) })
	}
}

// follow takes over the length of the pool's leases, which somebody may have edited. The server takes lanes for lost that are held
// for longer than that without a renewal, so those are given up that count on more.
func (h *Holder) follow(length time.Duration) {
	before := time.Duration(h.lease.Swap(int64(length)))
	if before == length {
		return
	}
	h.options.Logger.Warn("leases of the pool were edited", slog.Duration("before", before), slog.Duration("now", length))
	h.puller.expire(length / 3)
	h.room()
	h.each(func(l *held) {
		if l.lease.length > length {
			l.abort(ErrLost)
		}
	})
}

// consumerState is what the server says about the pool's consumer.
type consumerState struct {
	made  string // when it was made; unknown, gone
	lease time.Duration
	at    time.Time // by the server's clock
}

// What made may be beside times.
const (
	unknown = ""
	gone    = "gone"
)

// readConsumer reads the answer to CONSUMER.INFO.
func readConsumer(body []byte) consumerState {
	var info struct {
		Created time.Time `json:"created"`
		At      time.Time `json:"ts"`
		Config  struct {
			Lease time.Duration `json:"ack_wait"`
		} `json:"config"`
		Error *jetstream.APIError `json:"error"`
	}
	err := json.Unmarshal(body, &info)
	switch {
	case err != nil:
		return consumerState{}
	case info.Error != nil && (info.Error.ErrorCode == jetstream.JSErrCodeConsumerNotFound || info.Error.ErrorCode == jetstream.JSErrCodeStreamNotFound):
		return consumerState{made: gone}
	case info.Created.IsZero() || info.At.IsZero() || info.Config.Lease <= 0:
		return consumerState{}
	}
	return consumerState{made: info.Created.String(), lease: info.Config.Lease, at: info.At}
}

// pace notices when the server's clock goes faster than time does. Another leader's clock may be ahead, too: leases that an
// earlier one has begun then end as much earlier. It is safe for concurrent use.
type pace struct {
	mu    sync.Mutex
	begun time.Time     // the first answer
	most  time.Duration // how much further the server's clock had come by the last answer than time since begun, at most
}

// leap is by how much, at least, the server's clock was put forward since the last answer; this one was asked and answered at the given
// times, and tells the server's time in between.
func (p *pace) leap(server, asked, answered time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.begun.IsZero()
	if first {
		p.begun = answered
	}
	// Times of this machine are compared with begun only: so it is time that has passed, however its own clock is put.
	came := server.Sub(p.begun)
	leap := came - answered.Sub(p.begun) - p.most
	p.most = came - asked.Sub(p.begun)
	if first {
		return 0
	}
	return leap
}
