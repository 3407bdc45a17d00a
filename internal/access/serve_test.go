package access_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/judge"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hours are bounds that no test reaches.
func hours() access.Bounds {
	return access.Bounds{Head: time.Hour, Body: time.Hour, Send: time.Hour, Idle: time.Hour, Last: time.Hour, Conns: 100}
}

// serve serves a handler until the test ends.
func serve(t *testing.T, b access.Bounds, handler http.HandlerFunc) (address string, end func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- access.Serve(ctx, listener, handler, b) }()
	ended := false
	end = func() {
		if cancel(); !ended {
			ended = true
			require.NoError(t, <-over)
		}
	}
	t.Cleanup(end)
	return listener.Addr().String(), end
}

// dial connects, and sends a text.
func dial(t *testing.T, address, text string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	return conn
}

const get = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

// Clients that send or take too slowly are disconnected, each by the bound that is about it.
func TestServe_SlowClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	const soon = 300 * time.Millisecond
	large := func(w http.ResponseWriter, _ *http.Request) {
		for range 1000 { // more than the buffers of a connection hold
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	}
	read := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			w.WriteHeader(http.StatusRequestTimeout)
		}
	}
	ignores := func(http.ResponseWriter, *http.Request) {}
	begins := func(w http.ResponseWriter, _ *http.Request) { _ = http.NewResponseController(w).Flush() }
	const chunked = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
	const sized = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n"
	refuses := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusUnauthorized)
	}
	for name, c := range map[string]struct {
		change  func(*access.Bounds)
		handler http.HandlerFunc
		sends   string
		takes   bool
	}{
		"a head that never ends":      {func(b *access.Bounds) { b.Head = soon }, read, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", true},
		"a body that never ends":      {func(b *access.Bounds) { b.Body = soon }, read, "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\nx", true},
		"a body that is not read":     {func(b *access.Bounds) { b.Body = soon }, ignores, sized + "x", true},
		"a body that is not awaited":  {func(b *access.Bounds) { b.Body = soon }, begins, chunked, true},
		"a body that is refused":      {func(b *access.Bounds) { b.Body = soon }, refuses, sized, true},
		"an answer that is not taken": {func(b *access.Bounds) { b.Send = soon }, large, get, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := hours()
			c.change(&b)
			over := make(chan struct{}, 1)
			address, _ := serve(t, b, func(w http.ResponseWriter, r *http.Request) {
				c.handler(w, r)
				over <- struct{}{}
			})
			conn := dial(t, address, c.sends)
			if !c.takes {
				<-over // the handler does not wait for the client
				return
			}
			_, err := io.Copy(io.Discard, conn)
			require.NoError(t, err, "the server has ended the connection")
		})
	}
}

// The bounds of one request are none of what comes behind it on its connection: a long answer, and
// the next request.
func TestServe_BoundsEndWithTheirRequest(t *testing.T) {
	t.Parallel()
	b := hours()
	b.Body, b.Send = time.Second, time.Second
	address, _ := serve(t, b, func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		if err == nil && r.URL.Path == "/long" {
			select {
			case <-time.After(b.Body + 500*time.Millisecond): // longer than each bound
			case <-r.Context().Done():
				return
			}
		}
		_, _ = fmt.Fprint(w, "whole")
	})
	conn := dial(t, address, "")
	in := bufio.NewReader(conn)
	for _, path := range []string{"/long", "/", "/long"} {
		_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nx", path)
		require.NoError(t, err)
		answer, err := http.ReadResponse(in, nil)
		require.NoError(t, err, path)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, "whole", string(body))
	}
}

// A server that ends asks those that wait to end, and they have the time to do so.
func TestServe_Drains(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	address, end := serve(t, hours(), func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-access.Draining(r.Context())
		assert.NoError(t, r.Context().Err())
		_, _ = fmt.Fprint(w, "the end")
	})
	conn := dial(t, address, get)
	<-begun
	go end()
	answer, err := io.ReadAll(conn)
	require.NoError(t, err)
	require.Contains(t, string(answer), "the end")
}

// Each principal has a share of its own, and a place that is given back is free.
func TestShares_AreOfEachPrincipal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		shares *access.Shares
		most   int
	}{"rate": {&access.Shares{Rate: 1}, 2}, "open": {&access.Shares{Open: 3}, 3}, "neither": {&access.Shares{}, 100}} {
		inside, leave := make(chan struct{}, 200), make(chan struct{})
		handler := c.shares.Bound(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			inside <- struct{}{}
			<-leave
		}), func(w http.ResponseWriter, status int, reason string) { http.Error(w, reason, status) })
		ask := func(who string) (refused chan answer) {
			refused = make(chan answer, 1)
			r := (&http.Request{}).WithContext(judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: who}))
			w := answer{header: http.Header{}, text: &strings.Builder{}, status: new(int)}
			go func() {
				handler.ServeHTTP(w, r)
				refused <- w
			}()
			return refused
		}
		for range c.most {
			ask("ann")
			<-inside
		}
		if name != "neither" {
			w := <-ask("ann")
			require.Equal(t, http.StatusTooManyRequests, *w.status, name)
			require.Equal(t, "1", w.header.Get("Retry-After"))
			require.Contains(t, w.text.String(), "token:ann")
		}
		ask("bob")
		<-inside
		for range c.most + 1 {
			leave <- struct{}{}
		}
		if name == "open" {
			require.Eventually(t, func() bool {
				select {
				case <-ask("ann"):
					return false
				case <-inside:
					leave <- struct{}{}
					return true
				}
			}, time.Minute, time.Millisecond)
		}
	}
}

// answer is what a handler answers.
type answer struct {
	header http.Header
	text   *strings.Builder
	status *int
}

func (a answer) Header() http.Header         { return a.header }
func (a answer) Write(p []byte) (int, error) { return a.text.Write(p) }
func (a answer) WriteHeader(status int)      { *a.status = status }

// A web page whose name leads to a loopback address is refused, on every connection to one.
func TestLocalHost_RefusesOtherNames(t *testing.T) {
	t.Parallel()
	handler := access.LocalHost(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}),
		func(w http.ResponseWriter, status int, reason string) { http.Error(w, reason, status) })
	address, _ := serve(t, hours(), handler.ServeHTTP)
	for host, want := range map[string]string{
		"127.0.0.1": "200", "127.0.0.1:80": "200", "localhost:7070": "200", "[::1]:7070": "200", "[::1]": "200",
		"evil.example": "403", "evil.example:80": "403", "127.0.0.1.evil.example": "403", "10.0.0.1": "403", "localhost.evil.example": "403",
	} {
		conn := dial(t, address, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Contains(t, string(answer), "HTTP/1.1 "+want, host)
	}
}
