package access

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/system"
)

// Bounds limit what any client over HTTP may consume of this process.
type Bounds struct {
	Head  time.Duration // in which the head of a request must arrive
	Body  time.Duration // in which its body must arrive after that
	Send  time.Duration // in which a client must take a piece of an answer
	Idle  time.Duration // for which a connection may wait for its next request
	Last  time.Duration // for answers when the server is to end
	Conns int           // connections at once
}

// DefaultBounds returns the bounds of this machine.
func DefaultBounds() Bounds {
	// A connection costs a descriptor, and the stores of an embedded NATS server need some.
	return Bounds{
		Head: 10 * time.Second, Body: time.Minute, Send: 30 * time.Second, Idle: 2 * time.Minute,
		Last: 5 * time.Second, Conns: min(max(system.OpenFiles()/4, 16), 4096),
	}
}

// Serve serves clients over HTTP, until ctx ends, and closes the listener. It bounds the number of
// connections, the time in which a request must arrive and that in which answers must be taken.
// When ctx ends no request is accepted any more, and [Draining] asks those that wait to end. The
// contexts of the others end with the time that they have then, [Bounds].Last.
func Serve(ctx context.Context, listener net.Listener, handler http.Handler, b Bounds) error {
	base, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	draining := make(chan struct{})
	base = context.WithValue(base, drainKey{}, draining)
	web := &http.Server{
		Handler: bounded(handler, b), ReadHeaderTimeout: b.Head, IdleTimeout: b.Idle, ConnState: capped(b.Conns), MaxHeaderBytes: maxHead,
		BaseContext: func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, &peer{})
		},
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.Last)
		defer cancel()
		close(draining)
		if web.Shutdown(last) != nil {
			cut()
			_ = web.Close() // clients that take nothing
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

// maxHead bounds the head of a request, in bytes.
const maxHead = 64 << 10

type drainKey struct{}

type peerKey struct{}

// peer is what is known of the other side of a connection, see [UserOf].
type peer struct {
	mu    sync.Mutex
	known bool
	user  uint64
}

// Draining returns a channel that is closed when the server of a request is to end; nil without a
// server.
func Draining(ctx context.Context) <-chan struct{} {
	draining, _ := ctx.Value(drainKey{}).(chan struct{})
	return draining
}

// bounded bounds the time in which the bodies of requests arrive, and in which answers are taken.
func bounded(next http.Handler, b Bounds) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent := &sender{ResponseWriter: w, control: http.NewResponseController(w), within: b.Send}
		if r.Body != nil && r.Body != http.NoBody {
			sent.body = &received{ReadCloser: r.Body, control: sent.control, within: b.Body}
			r = r.WithContext(r.Context()) // the server looks at the body of its own
			r.Body = sent.body
		}
		next.ServeHTTP(sent, r)
		sent.more() // the server sends what is left
	})
}

// piece is how much of an answer a client must take in the time that it has, in bytes.
const piece = 64 << 10

// sender sends an answer, and ends the connection of a client that takes nothing.
type sender struct {
	http.ResponseWriter

	control *http.ResponseController
	within  time.Duration
	body    *received // of the request; nil without one
}

// Unwrap is for [http.ResponseController].
func (s *sender) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// more gives the client time for the next piece. The server reads what is left of a body that the
// handler has not read, with the head of the answer and behind its end.
func (s *sender) more() {
	if s.body != nil {
		s.body.begin()
	}
	if s.within > 0 {
		_ = s.control.SetWriteDeadline(time.Now().Add(s.within)) // where it is no connection, as in tests, there is none
	}
}

// WriteHeader implements [http.ResponseWriter].
func (s *sender) WriteHeader(status int) {
	s.more()
	s.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (s *sender) Write(body []byte) (sent int, err error) {
	for {
		s.more()
		n, err := s.ResponseWriter.Write(body[sent:min(len(body), sent+piece)])
		if sent += n; err != nil || sent == len(body) {
			return sent, err
		}
	}
}

// Flush implements [http.Flusher].
func (s *sender) Flush() { _ = s.FlushError() }

// FlushError is for [http.ResponseController].
func (s *sender) FlushError() error {
	s.more()
	return s.control.Flush()
}

// received is the body of a request. When it has arrived whole the server waits for the client to
// go, without a bound.
type received struct {
	io.ReadCloser

	control *http.ResponseController
	within  time.Duration
	begun   bool
}

// begin bounds the time in which the body arrives, from now on.
func (r *received) begin() {
	if !r.begun && r.within > 0 {
		r.begun = true
		_ = r.control.SetReadDeadline(time.Now().Add(r.within)) // as with more
	}
}

// Read implements [io.Reader].
func (r *received) Read(p []byte) (int, error) {
	r.begin()
	n, err := r.ReadCloser.Read(p)
	if r.begun && errors.Is(err, io.EOF) {
		_ = r.control.SetReadDeadline(time.Time{})
	}
	return n, err
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
