package mcpserver

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

const goodToken = "a-token-of-sixteen-characters"

// generous is longer than what is waited for takes anywhere.
const generous = time.Minute

// listen serves clients that have a token, and returns its address.
func listen(t *testing.T, b access.Bounds) string {
	t.Helper()
	table, err := tools.NewTable()
	require.NoError(t, err)
	tokens, err := access.ReadTokens(strings.NewReader("ann use " + goodToken))
	require.NoError(t, err)
	s := New(Options{Fleet: Fleet{Name: protocol.DefaultFleet}, Tools: table})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, listener, HTTPOptions{Access: access.NewTokens(tokens...)}, b) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return listener.Addr().String()
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	require.NoError(t, conn.SetDeadline(time.Now().Add(generous)))
	return conn
}

// begin sends the head of a request whose body never comes.
func begin(t *testing.T, conn net.Conn, token string) {
	t.Helper()
	_, err := fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n", token)
	require.NoError(t, err)
}

// slow are bounds that no test reaches.
func slow() access.Bounds {
	return access.Bounds{Head: time.Hour, Body: time.Hour, Idle: time.Hour, Conns: 100}
}

func TestServe_ARequestIsRefusedBeforeItsBodyIsRead(t *testing.T) {
	t.Parallel()
	address := listen(t, slow())
	for name, path := range map[string]string{"wrong token": "/mcp", "no such page": "/other"} {
		conn := dial(t, address)
		_, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer wrong\r\nContent-Length: 1000\r\n\r\n", path)
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err, name)
		require.Contains(t, []int{http.StatusUnauthorized, http.StatusNotFound}, answer.StatusCode, name)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err, name)
		require.NoError(t, answer.Body.Close())
		_, err = conn.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "%s: the connection is closed, though its body is not there", name)
	}
}

func TestServe_ABodyMustArriveInTime(t *testing.T) {
	t.Parallel()
	b := slow()
	b.Body = 50 * time.Millisecond
	conn := dial(t, listen(t, b))
	begin(t, conn, goodToken)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestTimeout, answer.StatusCode)
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Contains(t, string(body), "the message did not arrive within 50ms")
}

func TestServe_ADeadlineOfABodyEndsWithIt(t *testing.T) {
	t.Parallel()
	b := slow()
	b.Body = 2 * time.Second // in which a message arrives also on a busy machine
	conn := dial(t, listen(t, b))
	in := bufio.NewReader(conn)
	post := func(body string) int {
		_, err := fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", goodToken, len(body), body)
		require.NoError(t, err)
		answer, err := http.ReadResponse(in, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		return answer.StatusCode
	}
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	for range 3 {
		require.Equal(t, http.StatusOK, post(ping), "the same connection takes another request")
	}
	time.Sleep(b.Body + 100*time.Millisecond) // the deadline has to pass
	require.Equal(t, http.StatusOK, post(ping))
}

func TestServe_IdleConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*access.Bounds){
		"that never asked": func(b *access.Bounds) { b.Head = 50 * time.Millisecond },
		"that have asked":  func(b *access.Bounds) { b.Idle = 50 * time.Millisecond },
	} {
		b := slow()
		change(&b)
		conn := dial(t, listen(t, b))
		if b.Head == time.Hour {
			_, err := fmt.Fprint(conn, "GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
			require.NoError(t, err)
		}
		_, err := io.Copy(io.Discard, conn)
		require.NoError(t, err, name)
	}
}

func TestServe_ConnectionsAreCapped(t *testing.T) {
	t.Parallel()
	b := slow()
	b.Conns = 3
	address := listen(t, b)
	var open []net.Conn
	for range b.Conns {
		conn := dial(t, address)
		open = append(open, conn)
		_, err := fmt.Fprint(conn, "GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1)) // it is served
		require.NoError(t, err)
	}
	_, err := io.Copy(io.Discard, dial(t, address))
	require.NoError(t, err, "one more is closed")
	require.NoError(t, open[0].Close())
	require.Eventually(t, func() bool {
		conn := dial(t, address)
		_, err := fmt.Fprint(conn, "GET /other HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		require.NoError(t, err)
		n, _ := conn.Read(make([]byte, 1))
		return n == 1
	}, generous, 10*time.Millisecond, "the place of one that has gone is free")
}

func TestHandler_SessionsOfATokenAreBounded(t *testing.T) {
	t.Parallel()
	table, err := tools.NewTable()
	require.NoError(t, err)
	tokens, err := access.ReadTokens(strings.NewReader("ann read " + goodToken))
	require.NoError(t, err)
	s := New(Options{Fleet: Fleet{Name: protocol.DefaultFleet}, Tools: table})
	web := httptest.NewServer(s.Handler(HTTPOptions{Access: access.NewTokens(tokens...)}))
	t.Cleanup(func() {
		web.Close()
		for session := range s.offer.reading.server.Sessions() {
			_ = session.Close() // as its client has gone
		}
	})
	post := func(session, body string) (status int, id string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+"/mcp", strings.NewReader(body))
		require.NoError(t, err)
		for name, value := range map[string]string{
			"Authorization": "Bearer " + goodToken, "Content-Type": "application/json", "Accept": "application/json, text/event-stream", sessionHeader: session,
		} {
			if value != "" {
				request.Header.Set(name, value)
			}
		}
		response, err := web.Client().Do(request)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, response.Header.Get(sessionHeader)
	}
	const hello = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	_, busy := post("", hello)
	require.NotEmpty(t, busy)
	ids := []string{}
	for range 2 * maxSessions {
		_, id := post("", hello)
		ids = append(ids, id)
		status, _ := post(busy, ping)
		require.Equal(t, http.StatusOK, status, "one that is used stays")
	}
	open := 0
	for range s.offer.reading.server.Sessions() {
		open++
	}
	require.Equal(t, maxSessions, open)
	first, _ := post(ids[0], ping)
	require.Equal(t, http.StatusNotFound, first, "its client greets again")
	last, _ := post(ids[len(ids)-1], ping)
	require.Equal(t, http.StatusOK, last)
	var together sync.WaitGroup
	for range 4 * maxSessions {
		together.Go(func() { post("", hello) })
	}
	together.Wait()
	open = 0
	for range s.offer.reading.server.Sessions() {
		open++
	}
	require.LessOrEqual(t, open, maxSessions, "however many are opened at once")
}

// TestAnswers_AreUsedOnce, at the bound of what is known and beyond it, and one principal's are
// nothing to another's.
func TestAnswers_AreUsedOnce(t *testing.T) {
	t.Parallel()
	now := time.Now()
	question := func(n int, ends time.Duration) questionState {
		return questionState{Kind: askApproval, Call: protocol.CallID(fmt.Sprint(n)), Ends: now.Add(ends)}
	}
	var a answers
	for n := range maxAnswers {
		require.NoError(t, a.use("ada", question(n, time.Minute), now))
	}
	require.Equal(t, errState, a.use("ada", question(0, time.Minute), now), "used")
	require.Equal(t, errAnswers, a.use("ada", question(maxAnswers, time.Minute), now), "one more")
	require.NoError(t, a.use("bob", question(maxAnswers, time.Minute), now))
	later := now.Add(2 * time.Minute)
	require.Equal(t, errState, a.use("ada", question(1, time.Minute), later), "its time has passed")
	require.NoError(t, a.use("ada", question(maxAnswers+1, 3*time.Minute), later), "there is room again")
	require.Len(t, a.of["ada"].ends, 1)
	require.Equal(t, errState, a.use("ada", question(1, time.Minute), now), "the clock was set back, and nobody knows that it was used")
	require.Equal(t, errState, a.use("ada", question(maxAnswers+1, 3*time.Minute), now))
	require.NoError(t, a.use("ada", question(maxAnswers+2, 5*time.Minute), now))
}
