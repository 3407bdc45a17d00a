package lane

import (
	"context"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/store"
)

// doubt is what a server's count of deliveries does not tell.
type doubt uint8

const (
	doubtNothing doubt = iota // the count is right
	doubtSettled              // calls may have been settled before
	doubtStarted              // calls may have been started before, and settled or not
)

// books judges how far the server's count of deliveries can be believed. A server on its own writes the
// count to disk a moment late: after a kill it may say of a lane that was held that it was never
// delivered. So the count is doubted for what was stored before this process first met the server since
// its last start, and for what was stored before the pool's consumer was made again, because somebody
// deleted it or restored the stream from a backup. All times are the server's own, as is when a message was
// stored: measured by this machine's clock they would be off by as much as an answer takes. It is safe for concurrent use.
type books struct {
	mu     sync.Mutex
	server string    // id of the running server; it has a new one after each start
	since  time.Time // when this process had met it
	before bool      // this process knew it under another id
	made   string    // when the consumer was made; unknown at first
	anew   time.Time // when this process noticed that the consumer was made again; zero if it never was
}

// sync measures the server's time, and meets the server that told it.
func (b *books) sync(ctx context.Context, s *store.Store, clock *store.Clock) error {
	server := s.NC.ConnectedServerId()
	told, err := clock.Sync(ctx, s.Calls)
	if err != nil {
		return err
	}
	b.meet(server, told)
	return nil
}

// meet notes which server a connection leads to, and a time that it told after that.
func (b *books) meet(server string, told time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.other(server) {
		b.before = b.server != ""
		b.server, b.since = server, told
	}
}

// met reports whether a server is the one that was met last. None, without a connection, is no other.
func (b *books) met(server string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.other(server)
}

// other is the opposite of met; the caller has the lock.
func (b *books) other(server string) bool { return server != "" && server != b.server }

// remade notes when the pool's consumer was made, and reports whether this process knew an earlier one.
// What the earlier one has handed out, the new one hands out again.
func (b *books) remade(made string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	other := b.made != unknown && b.made != made
	if b.made = made; other {
		b.anew = now
	}
	return other
}

// doubtConsumer judges a first delivery of a message by when that was stored.
func (b *books) doubtConsumer(stored time.Time) doubt {
	b.mu.Lock()
	defer b.mu.Unlock()
	if stored.Before(b.anew) {
		return doubtStarted
	}
	return doubtNothing
}

// doubt judges a first delivery by a server of a message by when that was stored.
func (b *books) doubt(server string, stored time.Time) doubt {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.other(server):
		return doubtStarted
	case !stored.Before(b.since):
		return doubtNothing
	case b.before:
		return doubtStarted
	default: // this process is new: the message may as well have waited for a worker
		return doubtSettled
	}
}
