package natsiotest

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"
)

// Link is the network between a connection and its server. It is safe for concurrent use.
type Link struct {
	dial       func() (net.Conn, error) // to the server
	maxPayload int                      // what its client believes that the server has; 0 is as it has

	deaf   atomic.Bool
	writes writes

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

var _ nats.InProcessConnProvider = (*Link)(nil)

func newLink(options []nats.Option) *Link {
	var o nats.Options
	for _, option := range options {
		if err := option(&o); err != nil {
			panic(err) // the server's own options
		}
	}
	if o.InProcessServer != nil {
		return &Link{dial: o.InProcessServer.InProcessConn}
	}
	return &Link{dial: func() (net.Conn, error) { return o.CustomDialer.Dial("tcp", "") }}
}

var errCut = errors.New("the link is cut")

// InProcessConn implements [nats.InProcessConnProvider].
func (l *Link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	made, err := l.dial()
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, made)
	return &conn{Conn: made, link: l}, nil
}

// Deafen loses whatever the server says from now on, until [Link.Mend]: requests
// arrive, answers do not. The server must be at rest, or half a message is lost.
func (l *Link) Deafen() { l.deaf.Store(true) }

// Cut ends the connection, and lets none be made until [Link.Mend].
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for _, conn := range l.conns {
		_ = conn.Close() // whatever is left of it
	}
	l.conns = nil
}

// Mend lets answers through, and connections be made, again.
func (l *Link) Mend() {
	l.deaf.Store(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}
