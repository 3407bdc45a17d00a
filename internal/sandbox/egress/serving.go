package egress

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// maxHeader bounds what a client sends before its request is judged, in bytes.
const maxHeader = 16 << 10

// Serve serves a listener until ctx ends or the listener is closed, and closes it. It
// returns when no connection is left; nil unless the listener broke.
func (p *Proxy) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := &clients{Listener: l, ctx: ctx, idle: p.idle, slots: make(chan struct{}, p.conns)}
	web := newWeb(p, clients.work.Done)
	server := &http.Server{
		Handler:                      web,
		ReadHeaderTimeout:            greetTimeout,
		IdleTimeout:                  p.idle,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ConnState:                    clients.count,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	err := server.Serve(clients)
	stop()
	cancel()
	_ = server.Close() // the listener may be closed already
	clients.work.Wait()
	web.close()
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("egress proxy: %w", err)
	}
	return nil
}

// clients is a listener of which few connections are there at once; further ones wait.
type clients struct {
	net.Listener

	ctx   context.Context //nolint:containedctx // the life of the listener
	idle  time.Duration
	slots chan struct{}
	work  sync.WaitGroup // connections and the goroutines that serve them
}

// Accept implements [net.Listener].
func (c *clients) Accept() (net.Conn, error) {
	select {
	case c.slots <- struct{}{}:
	case <-c.ctx.Done():
		return nil, net.ErrClosed
	}
	raw, err := c.Listener.Accept()
	if err != nil {
		<-c.slots
		return nil, err
	}
	c.work.Add(1)
	return newConn(c.ctx, raw, c.idle, func() { <-c.slots; c.work.Done() }), nil
}

// count counts the goroutines of the HTTP server. Those whose connection was hijacked
// are counted out when the tunnel ends.
func (c *clients) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		c.work.Add(1)
	case http.StateClosed:
		c.work.Done()
	default:
	}
}
