//go:build linux

package chaos

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// link is the network between a process and its server: a proxy whose connections
// can be cut, made deaf and made slow. It is safe for concurrent use.
type link struct {
	server   string
	listener net.Listener
	group    sync.WaitGroup

	mu     sync.Mutex
	cut    bool
	deaf   bool          // what the server says is lost
	delay  time.Duration // of everything, in both directions
	conns  map[net.Conn]struct{}
	closed bool
}

func newLink(t *testing.T, server string) *link {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := &link{server: server, listener: listener, conns: map[net.Conn]struct{}{}}
	l.group.Go(l.accept)
	t.Cleanup(func() {
		_ = listener.Close() // ends accept
		l.mu.Lock()
		l.closed = true
		l.drop()
		l.mu.Unlock()
		l.group.Wait()
	})
	return l
}

func (l *link) address() string { return l.listener.Addr().String() }

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		if l.cut || l.closed {
			_ = near.Close() // refused
			l.mu.Unlock()
			continue
		}
		l.mu.Unlock()
		far, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", l.server)
		if err != nil {
			_ = near.Close() // the server is not there
			continue
		}
		l.mu.Lock()
		l.conns[near], l.conns[far] = struct{}{}, struct{}{}
		if l.cut || l.closed {
			l.drop()
		}
		l.mu.Unlock()
		l.group.Go(func() { l.carry(near, far, false) })
		l.group.Go(func() { l.carry(far, near, true) })
	}
}

// carry copies one direction until either end is closed.
func (l *link) carry(from, to net.Conn, toClient bool) {
	defer l.forget(from, to)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		l.mu.Lock()
		lose, delay := l.deaf && toClient, l.delay
		l.mu.Unlock()
		if delay > 0 {
			wait(context.Background(), delay)
		}
		if lose {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (l *link) forget(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // it may be closed
		delete(l.conns, conn)
	}
}

// drop ends all connections. The lock is held.
func (l *link) drop() {
	for conn := range l.conns {
		_ = conn.Close() // whatever is left of it
	}
	clear(l.conns)
}

// sever ends the connection, and lets none be made until [link.mend].
func (l *link) sever() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	l.drop()
}

// deafen loses whatever the server says, until [link.mend].
func (l *link) deafen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaf = true
}

// slow delays everything, until [link.mend].
func (l *link) slow(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = d
}

// mend makes the network good again. A connection that has lost something is ended.
func (l *link) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf {
		l.drop()
	}
	l.cut, l.deaf, l.delay = false, false, 0
}
