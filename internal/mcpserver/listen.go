package mcpserver

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/openfiles"
)

// bounds are what a client over HTTP may take of this process, whoever it is.
type bounds struct {
	head, body time.Duration // in which the head of a request must arrive, and its body after that
	idle       time.Duration // for which a connection may wait for its next request
	last       time.Duration // for answers when the server is to end
	conns      int           // connections at once
}

func defaultBounds() bounds {
	// A connection costs a descriptor, and the stores of an embedded NATS server need some.
	return bounds{head: 10 * time.Second, body: time.Minute, idle: 2 * time.Minute, last: 5 * time.Second, conns: min(max(openfiles.Limit()/4, 16), 4096)}
}

// Serve serves clients over HTTP, see [Server.Handler], until ctx ends, and closes the listener. It
// bounds the number of connections and the time in which a request must arrive.
func (s *Server) Serve(ctx context.Context, listener net.Listener, o HTTPOptions) error {
	return s.serve(ctx, listener, o, defaultBounds())
}

func (s *Server) serve(ctx context.Context, listener net.Listener, o HTTPOptions, b bounds) error {
	web := &http.Server{Handler: s.handler(o, b), ReadHeaderTimeout: b.head, IdleTimeout: b.idle, ConnState: capped(b.conns)}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.last)
		defer cancel()
		if web.Shutdown(last) != nil {
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

// unread ends the connection of a request that is answered before its body was read, without
// waiting for that. [readBody] keeps the connection.
func unread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Connection", "close")
		read := false
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), bodyRead{}, &read)))
		if !read {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now()) // else the server reads on
		}
	})
}

// bodyRead is the key of whether the body of a request was read, in its context.
type bodyRead struct{}

// readBody reads the body of a request, which must arrive within some time.
func readBody(w http.ResponseWriter, r *http.Request, within time.Duration) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(within)) // where it is no connection, as in tests, there is none
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err == nil {
		_ = control.SetReadDeadline(time.Time{}) // the server waits for the client to go
		w.Header().Del("Connection")
		if read, ok := r.Context().Value(bodyRead{}).(*bool); ok {
			*read = true
		}
	}
	return body, err
}
