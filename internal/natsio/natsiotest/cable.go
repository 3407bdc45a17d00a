package natsiotest

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cable is the network on the way to a server: a proxy whose connections can be cut, made
// deaf and made slow. It ends with its test, and is safe for concurrent use.
type Cable struct {
	server   string
	listener net.Listener
	group    sync.WaitGroup

	mu     sync.Mutex
	cut    bool
	deaf   bool          // what the server says is lost
	delay  time.Duration // of everything, in both directions
	match  func(said []byte) bool
	before func() // nil when nothing is waited for
	conns  map[net.Conn]struct{}
	closed bool
}

// NewCable lays a cable to the address of a server.
func NewCable(tb testing.TB, server string) *Cable {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	c := &Cable{server: server, listener: listener, conns: map[net.Conn]struct{}{}}
	c.group.Go(c.accept)
	tb.Cleanup(func() {
		_ = listener.Close() // ends accept
		c.mu.Lock()
		c.closed = true
		c.drop()
		c.mu.Unlock()
		c.group.Wait()
	})
	return c
}

// Address is where the near end of the cable is.
func (c *Cable) Address() string { return c.listener.Addr().String() }

func (c *Cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.mu.Lock()
		if c.cut || c.closed {
			_ = near.Close() // refused
			c.mu.Unlock()
			continue
		}
		c.mu.Unlock()
		far, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", c.server)
		if err != nil {
			_ = near.Close() // the server is not there
			continue
		}
		c.mu.Lock()
		c.conns[near], c.conns[far] = struct{}{}, struct{}{}
		if c.cut || c.closed {
			c.drop()
		}
		c.mu.Unlock()
		c.group.Go(func() { c.carry(near, far, false) })
		c.group.Go(func() { c.carry(far, near, true) })
	}
}

// carry copies one direction until either end is closed.
func (c *Cable) carry(from, to net.Conn, toClient bool) {
	defer c.forget(from, to)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		lose, delay := c.deaf && toClient, c.delay
		c.mu.Unlock()
		if delay > 0 {
			<-time.After(delay)
		}
		if lose {
			continue
		}
		if !toClient {
			c.await(buffer[:n])
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// Before has f called once, before something that a client says and match is true of is passed on.
// What is said at the same time may come in one piece.
func (c *Cable) Before(match func(said []byte) bool, f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.match, c.before = match, f
}

// await calls what [Cable.Before] was given when it is time.
func (c *Cable) await(said []byte) {
	c.mu.Lock()
	f := c.before
	if f == nil || !c.match(said) {
		c.mu.Unlock()
		return
	}
	c.match, c.before = nil, nil
	c.mu.Unlock()
	f()
}

func (c *Cable) forget(conns ...net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // it may be closed
		delete(c.conns, conn)
	}
}

// drop ends all connections. The lock is held.
func (c *Cable) drop() {
	for conn := range c.conns {
		_ = conn.Close() // whatever is left of it
	}
	clear(c.conns)
}

// Sever ends the connection, and lets none be made until [Cable.Mend].
func (c *Cable) Sever() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	c.drop()
}

// Deafen loses whatever the server says, until [Cable.Mend].
func (c *Cable) Deafen() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deaf = true
}

// Slow delays everything, until [Cable.Mend].
func (c *Cable) Slow(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// Mend makes the network good again. A connection that has lost something is ended.
func (c *Cable) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.deaf {
		c.drop()
	}
	c.cut, c.deaf, c.delay = false, false, 0
}
