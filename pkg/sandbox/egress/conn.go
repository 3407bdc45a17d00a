package egress

import (
	"context"
	"net"
	"sync"
	"time"
)

// conn is a client's connection. It is closed when no byte moved for the idle time, and
// its context ends when it is closed.
type conn struct {
	net.Conn

	ctx    context.Context //nolint:containedctx // the life of the connection
	cancel context.CancelFunc
	idle   time.Duration
	timer  *time.Timer
	closed func()
	once   sync.Once
}

// newConn wraps a connection that lives no longer than ctx; closed is called once at its end.
func newConn(ctx context.Context, raw net.Conn, idle time.Duration, closed func()) *conn {
	c := &conn{Conn: raw, idle: idle, closed: closed}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.timer = time.AfterFunc(idle, c.cancel)
	context.AfterFunc(c.ctx, func() { _ = c.Close() }) //nolint:contextcheck // it is ctx's child
	return c
}

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.moved(n)
	return n, err
}

// Write implements [net.Conn].
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.moved(n)
	return n, err
}

// moved starts the idle time anew, unless it is over already.
func (c *conn) moved(n int) {
	if n > 0 && c.timer.Stop() {
		c.timer.Reset(c.idle)
	}
}

// CloseWrite tells the client that nothing more comes.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Close implements [net.Conn]. It may be called again.
func (c *conn) Close() error {
	var err error
	c.once.Do(func() {
		c.timer.Stop()
		err = c.Conn.Close()
		c.cancel()
		c.closed()
	})
	return err
}
