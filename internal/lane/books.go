package lane

import (
	"sync"
	"time"
)

// doubt is what a server's count of deliveries does not tell.
type doubt uint8

const (
	doubtNothing doubt = iota // the count is right
	doubtSettled              // calls may have been settled before
	doubtStarted              // they may have been started before, too
)

// books judges the server's count of deliveries. A server on its own writes it
// down a moment late: killed, it takes a lane that was held for one that never was. So
// what was stored before this process met the server as it runs now is doubted. So is what was stored before the pool's
// consumer was made again, because somebody had deleted it or put the stream of a backup in its place. It is
// safe for concurrent use.
type books struct {
	mu     sync.Mutex
	server string    // id of the running server; it has a new one after each start
	since  time.Time // when this process met it
	before bool      // this process knew it under another id
	made   string    // when the consumer was made; unknown at first
	anew   time.Time // when it was noticed to be another one; zero while it is the first
}

// meet notes which server a connection leads to.
func (b *books) meet(id string, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if id != "" && id != b.server {
		b.before = b.server != ""
		b.server, b.since = id, now
	}
}

// remade notes when the pool's consumer was made, and reports whether this process knew another one: whatever that has
// handed out, this one hands out, too.
func (b *books) remade(made string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	other := b.made != unknown && b.made != made
	if b.made = made; other {
		b.anew = now
	}
	return other
}

// doubtConsumer judges a first delivery of a message that was stored some time ago.
func (b *books) doubtConsumer(age time.Duration, now time.Time) doubt {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.anew.IsZero() || age < now.Sub(b.anew) {
		return doubtNothing
	}
	return doubtStarted
}

// doubt judges a first delivery of a message that was stored some time ago.
func (b *books) doubt(age time.Duration, now time.Time) doubt {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case age < now.Sub(b.since):
		return doubtNothing
	case b.before:
		return doubtStarted
	default: // this process is new: the message may as well have waited for a worker
		return doubtSettled
	}
}
