package natsiotest

import (
	"errors"
	"net"
	"sync"

	"github.com/nats-io/nats.go"
)

// Link is the network between a connection and its server. It is safe for concurrent use.
type Link struct {
	server nats.InProcessConnProvider

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
	return &Link{server: o.InProcessServer}
}

var errCut = errors.New("the link is cut")

// InProcessConn implements [nats.InProcessConnProvider].
func (l *Link) InProcessConn() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		return nil, errCut
	}
	conn, err := l.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

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

// Mend lets connections be made again.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}
