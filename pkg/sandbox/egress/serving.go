package egress

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// Bounds of what a client sends before its request is judged.
const maxHeader = 16 << 10

// acceptRetry is how long accepting waits when the system has no descriptors left.
const acceptRetry = 50 * time.Millisecond

// serving is one listener being served.
type serving struct {
	proxy *Proxy
	ctx   context.Context //nolint:containedctx // the life of the listener
	slots chan struct{}
	work  sync.WaitGroup // connections and the goroutines that serve them
	web   *web
	queue *queue
	http  *http.Server
}

func newServing(ctx context.Context, p *Proxy) *serving {
	s := &serving{
		proxy: p, ctx: ctx, slots: make(chan struct{}, p.conns),
		queue: &queue{ctx: ctx, conns: make(chan net.Conn)},
	}
	s.web = newWeb(p, s.work.Done)
	s.http = &http.Server{
		Handler:                      s.web,
		ReadHeaderTimeout:            greetTimeout,
		IdleTimeout:                  p.idle,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     log.New(discard{}, "", 0),
		ConnState:                    s.count,
	}
	s.work.Go(func() { _ = s.http.Serve(s.queue) }) // ends with the queue
	return s
}

// accept accepts connections until that fails.
func (s *serving) accept(l net.Listener) error {
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return nil
		}
		raw, err := l.Accept()
		if temporary, ok := errors.AsType[net.Error](err); ok && temporary.Timeout() {
			<-s.slots
			if !s.pause() {
				return nil
			}
			continue
		}
		if err != nil {
			<-s.slots
			return err
		}
		s.work.Add(1)
		c := newConn(s.ctx, raw, s.proxy.idle, func() { <-s.slots; s.work.Done() })
		s.work.Go(func() { s.serve(c) })
	}
}

// count counts the goroutines of the HTTP server. Those whose connection was hijacked
// are counted out when the tunnel ends.
func (s *serving) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.work.Add(1)
	case http.StateClosed:
		s.work.Done()
	default:
	}
}

// pause waits a moment; false when the end came.
func (s *serving) pause() bool {
	timer := time.NewTimer(acceptRetry)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// serve finds out which protocol a client speaks and serves it.
func (s *serving) serve(c *conn) {
	_ = c.SetReadDeadline(time.Now().Add(greetTimeout))
	first, err := c.peek()
	switch {
	case err != nil:
		_ = c.Close()
	case first == socksVersion:
		s.proxy.serveSOCKS(c)
		_ = c.Close()
	default:
		_ = c.SetReadDeadline(time.Time{})
		s.queue.put(c)
	}
}

// wait returns when nothing is left of the listener, whose context has ended.
func (s *serving) wait() {
	_ = s.http.Close()
	s.work.Wait()
	s.web.close()
}

// queue is a listener for connections that somebody else accepted.
type queue struct {
	ctx   context.Context //nolint:containedctx // the life of the listener
	conns chan net.Conn
}

// put hands a connection over, or closes it.
func (q *queue) put(c net.Conn) {
	select {
	case q.conns <- c:
	case <-q.ctx.Done():
		_ = c.Close()
	}
}

// Accept implements [net.Listener].
func (q *queue) Accept() (net.Conn, error) {
	select {
	case c := <-q.conns:
		return c, nil
	case <-q.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener]; the context is what ends it.
func (q *queue) Close() error { return nil }

// Addr implements [net.Listener].
func (q *queue) Addr() net.Addr { return &net.TCPAddr{} }

// discard drops what the HTTP server has to say of broken clients.
type discard struct{}

// Write implements io.Writer.
func (discard) Write(b []byte) (int, error) { return len(b), nil }
