package natsiotest

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// cable is the way from one server to another, which can be cut. It ends with its test.
type cable struct {
	listener net.Listener
	target   string

	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
	group sync.WaitGroup
}

func newCable(tb testing.TB, target string) *cable {
	tb.Helper()
	listener, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	c := &cable{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	c.group.Go(c.accept)
	tb.Cleanup(func() {
		_ = listener.Close() // nobody connects any more
		c.set(true)
		c.group.Wait()
	})
	return c
}

func (c *cable) accept() {
	for {
		near, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.group.Go(func() { c.carry(near) })
	}
}

// carry connects one connection through until either side closes it, or the cable is cut.
func (c *cable) carry(near net.Conn) {
	defer c.drop(near)
	far, err := net.Dial("tcp", c.target) //nolint:noctx // it ends with the cable
	if err != nil {
		return
	}
	defer c.drop(far)
	if !c.add(near, far) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(near, far)
		_ = near.Close() // so that the other direction ends, too
	})
	_, _ = io.Copy(far, near)
	_ = far.Close()
	back.Wait()
}

func (c *cable) add(conns ...net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range conns {
		c.conns[conn] = struct{}{}
	}
	return !c.cut
}

func (c *cable) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
	_ = conn.Close() // it may be closed already
}

// set cuts the cable, or mends it.
func (c *cable) set(cut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = cut
	for conn := range c.conns {
		if cut {
			_ = conn.Close() // whoever carries it drops it
		}
	}
}
