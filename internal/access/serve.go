package access

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Bounds limit what any client over HTTP may consume of this process.
type Bounds struct {
	Head  time.Duration // in which the head of a request must arrive
	Body  time.Duration // in which its body must arrive after that
	Idle  time.Duration // for which a connection may wait for its next request
	Last  time.Duration // for answers when the server is to end
	Conns int           // connections at once
}

// DefaultBounds returns the bounds of this machine.
func DefaultBounds() Bounds {
	// A connection costs a descriptor, and the stores of an embedded NATS server need some.
	return Bounds{Head: 10 * time.Second, Body: time.Minute, Idle: 2 * time.Minute, Last: 5 * time.Second, Conns: min(max(system.OpenFiles()/4, 16), 4096)}
}

// Serve serves clients over HTTP, until ctx ends, and closes the listener. It bounds the number of
// connections and the time in which a request must arrive. The contexts of requests end with the
// time that they have then, [Bounds].Last.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, b Bounds) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	web := &http.Server{
		Handler: handler, ReadHeaderTimeout: b.Head, IdleTimeout: b.Idle, ConnState: capped(b.Conns),
		BaseContext: func(net.Listener) context.Context { return base },
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.Last)
		defer cancel()
		if web.Shutdown(last) != nil {
			cut()
			_ = web.Close() // streams of clients that only listen
		}
	})
	err := web.Serve(listener)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	if !stop() {
		<-ended
	}
	return err
}

// OverTLS serves TLS with a certificate on the connections of a listener.
func OverTLS(listener net.Listener, cert, key string) (net.Listener, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return tls.NewListener(listener, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
}

// capped counts connections, and closes those beyond a number at once: a client that had to wait
// for others would not know why.
func capped(most int) func(net.Conn, http.ConnState) {
	var open atomic.Int64
	return func(conn net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			if open.Add(1) > int64(most) {
				_ = conn.Close()
			}
		case http.StateClosed, http.StateHijacked:
			open.Add(-1)
		default:
		}
	}
}
