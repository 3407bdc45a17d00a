package natsio

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// repeatEvery is the least time between two log lines of one fault: a server that refuses a
	// process does so several times a second, for as long as its credentials are wrong.
	repeatEvery = time.Minute
	// maxFaults bounds how many faults are remembered; beyond it all of them are news again.
	maxFaults = 64
)

// faults logs what goes wrong on a connection, each fault at once and then once a minute. It is
// safe for concurrent use.
type faults struct {
	logger *slog.Logger
	now    func() time.Time

	mu   sync.Mutex
	next map[string]time.Time // when a fault may be logged again
}

// option has the client tell its errors, those of servers that refuse it included.
func (f *faults) option(ctx context.Context) nats.Option {
	return nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
		subject := ""
		if sub != nil {
			subject = sub.Subject
		}
		if f.news(subject + " " + err.Error()) {
			f.logger.WarnContext(ctx, "nats error", slog.String("subject", subject), slog.Any("error", err))
		}
	})
}

// news reports whether a fault is to be logged.
func (f *faults) news(fault string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.now()
	if now.Before(f.next[fault]) {
		return false
	}
	if f.next == nil || len(f.next) >= maxFaults {
		f.next = map[string]time.Time{}
	}
	f.next[fault] = now.Add(repeatEvery)
	return true
}
