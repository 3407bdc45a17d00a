package httpapi_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/toolfleet/toolfleet/internal/access"
	internal "github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/httpapi"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// serveAPI serves the API of a fleet as a server does, until end.
func serveAPI(t *testing.T, client *fleet.Client, b access.Bounds) (url string, end func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	handler := httpapi.New(httpapi.Options{Client: client, Version: "test"})
	go func() { over <- access.Serve(ctx, listener, handler, b) }()
	ended := false
	end = func() {
		if cancel(); !ended {
			ended = true
			require.NoError(t, <-over)
		}
	}
	t.Cleanup(end)
	return "http://" + listener.Addr().String(), end
}

// message is one of a stream.
type message struct{ kind, id, data string }

// follow reads a stream behind an event, until its end.
func follow(ctx context.Context, url, last string) (<-chan message, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Last-Event-ID", last)
	answer, err := http.DefaultClient.Do(r) //nolint:bodyclose // by the goroutine
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", answer.StatusCode)
	}
	out := make(chan message)
	go func() {
		defer close(out)
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		var m message
		for lines.Scan() {
			switch name, value, _ := strings.Cut(lines.Text(), ": "); name {
			case "event":
				m.kind = value
			case "id":
				m.id = value
			case "data":
				m.data = value
			case "":
				if m != (message{}) {
					select {
					case out <- m:
					case <-ctx.Done():
						return
					}
				}
				m = message{}
			}
		}
	}()
	return out, nil
}

// talker is a model that answers with a long text.
type talker struct{}

func (talker) Reply(context.Context, loop.Request, func(loop.Delta)) (loop.Reply, error) {
	return loop.Reply{Text: strings.Repeat("word ", 4000)}, nil
}

// talks returns what runs turns of a session.
func talks(t *testing.T, client *fleet.Client, session protocol.SessionID) (turns func(n int)) {
	t.Helper()
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := client.Runner(talker{}, table, nil)
	require.NoError(t, err)
	return func(n int) {
		for range n {
			_, err := runner.Run(t.Context(), session, loop.Input{Text: "Talk."})
			require.NoError(t, err)
		}
	}
}

// stored are the ids of the first events of a session, up to the end of a turn.
func stored(t *testing.T, client *fleet.Client, session protocol.SessionID, turns int) (ids []string) {
	t.Helper()
	for p, err := range client.Sessions("").Events(t.Context(), session, "") {
		require.NoError(t, err)
		if p.ID != "" {
			ids = append(ids, p.ID)
		}
		if p.Event != nil && p.Event.Type == loop.EventTurnEnded {
			if turns--; turns == 0 {
				return ids
			}
		}
	}
	return nil
}

// followers is how many follow the session of [TestStreams_FollowersDoNotWaitForEachOther].
func followers(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(cmp.Or(os.Getenv("FOLLOWERS"), "30"))
	require.NoError(t, err)
	return n
}

// Many clients follow one session, one of which reads nothing. The server is killed in the middle,
// and they continue at another one: each gets every stored event once, in order.
func TestStreams_FollowersDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	client := fleettest.Start(t)
	turns := talks(t, client, "s")
	turns(2)
	handler := httpapi.New(httpapi.Options{Client: client, Version: "test"})
	killed := httptest.NewServer(handler)
	defer killed.Close()
	other := httptest.NewServer(handler)
	defer other.Close()
	const events = "/v1/sessions/s/events"
	silent, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", other.Listener.Addr().String())
	require.NoError(t, err)
	defer silent.Close()
	if tcp, is := silent.(*net.TCPConn); is {
		require.NoError(t, tcp.SetReadBuffer(4096))
	}
	_, err = fmt.Fprintf(silent, "GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", events)
	require.NoError(t, err)

	const before, behind = 5, 20
	n, total := followers(t), 2+before+behind
	got, failed := make([][]string, n), make([]error, n)
	var arrived sync.WaitGroup
	arrived.Add(n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var once sync.Once
			defer once.Do(arrived.Done)
			server, last, ended := killed.URL, "", 0
			for ended < total && failed[i] == nil {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				next, err := follow(ctx, server+events, last)
				if err != nil {
					failed[i] = err
					return
				}
				for m := range next {
					if m.id == "" {
						continue
					}
					got[i], last = append(got[i], m.id), m.id
					if strings.Contains(m.data, `"type":"turn_ended"`) {
						if ended++; ended == 2+before {
							once.Do(arrived.Done)
						}
						if ended == total {
							return
						}
					}
				}
				server = other.URL
			}
		})
	}
	turns(before)
	arrived.Wait()
	require.NoError(t, killed.Listener.Close())
	killed.CloseClientConnections()
	begun := time.Now()
	turns(behind)
	all.Wait()
	require.NoError(t, silent.Close())
	t.Logf("%d followers had %d turns after %s", n, behind, time.Since(begun))
	runtime.GC() // else what is not used any more counts, also that of other tests
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	t.Logf("heap: %d MiB", memory.HeapAlloc>>20)
	if os.Getenv("FOLLOWERS") != "" { // else other tests are in the heap, too
		require.Less(t, memory.HeapAlloc>>20, uint64(200+n/2))
	}
	want := stored(t, client, "s", total)
	for i := range n {
		require.NoError(t, failed[i])
		require.Equal(t, want, got[i])
	}
}

// A server that ends says so to those that follow, and they continue elsewhere.
func TestStreams_EndWithTheServer(t *testing.T) {
	t.Parallel()
	client := fleettest.Start(t)
	talks(t, client, "s")(1)
	ref, err := client.Submit(t.Context(), fleet.Call{Tool: "bash", Arguments: `{"command": "sleep 600"}`, Session: "c", ID: "c"})
	require.NoError(t, err)
	b := access.DefaultBounds()
	b.Last = time.Hour
	url, end := serveAPI(t, client, b)
	var streams []<-chan message
	for _, path := range []string{"/v1/sessions/s/events", "/v1/calls/c/c/events"} {
		next, err := follow(t.Context(), url+path, "")
		require.NoError(t, err)
		streams = append(streams, next)
	}
	waits := make(chan string, 1)
	go func() {
		answer, err := http.Get(url + "/v1/calls/c/c?wait_ms=60000") //nolint:noctx // it ends with the server
		if err != nil {
			waits <- err.Error()
			return
		}
		defer answer.Body.Close()
		body, _ := io.ReadAll(answer.Body)
		waits <- string(body)
	}()
	for m := range streams[0] {
		if strings.Contains(m.data, `"type":"turn_ended"`) {
			break
		}
	}
	end()
	for _, next := range streams {
		var last message
		for m := range next {
			last = m
		}
		require.Equal(t, "end", last.kind)
		require.Contains(t, last.data, `"code":"draining"`)
	}
	require.NotContains(t, <-waits, "ended") // it may not have been sent yet
	future, err := client.Attach(t.Context(), ref)
	require.NoError(t, err)
	require.NoError(t, future.Cancel(t.Context()))
}

// goneWriter is the answer to a client that has gone.
type goneWriter struct{ header http.Header }

func (w goneWriter) Header() http.Header     { return w.header }
func (goneWriter) Write([]byte) (int, error) { return 0, net.ErrClosed }
func (goneWriter) WriteHeader(int)           {}

// A client that goes before its stream begins leaves nothing that follows the session.
func TestStreams_AClientThatHasGoneFollowsNothing(t *testing.T) {
	t.Parallel()
	var inner *internal.Fleet
	options := fleet.Options{Data: t.TempDir()}
	options.Opened = func(f *internal.Fleet) { inner = f }
	client, err := fleet.Connect(t.Context(), options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	talks(t, client, "s")(1)
	require.NotEmpty(t, stored(t, client, "s", 1)) // what all that follow share is open
	before := inner.NC.NumSubscriptions()
	handler := httpapi.New(httpapi.Options{Client: client, Version: "test"})
	for range 3 {
		ctx, leave := context.WithCancel(t.Context())
		handler.ServeHTTP(goneWriter{http.Header{}}, httptest.NewRequestWithContext(ctx, http.MethodGet, "/v1/sessions/s/events", nil))
		leave()
	}
	require.Eventually(t, func() bool { return inner.NC.NumSubscriptions() <= before }, time.Minute, 10*time.Millisecond)
}

// A call that runs for long is asked about again and again: what a request follows ends with it.
func TestCalls_AreFollowedByTheirRequestsAlone(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	client, err := fleet.Connect(t.Context(), fleet.Options{Data: t.TempDir(), MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	active := func() (n int64) {
		var all metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(context.Background(), &all))
		for _, scope := range all.ScopeMetrics {
			for _, m := range scope.Metrics {
				if sum, is := m.Data.(metricdata.Sum[int64]); is && m.Name == telemetry.MetricCallActive {
					for _, point := range sum.DataPoints {
						n += point.Value
					}
				}
			}
		}
		return n
	}
	_, err = client.Submit(t.Context(), fleet.Call{Session: "s", ID: "c", Payload: protocol.CommandRun{Command: "true"}}) // no worker takes it
	require.NoError(t, err)
	s := server{httptest.NewServer(httpapi.New(httpapi.Options{Client: client, Version: "test"})), client}
	defer s.Close()
	before := active()
	for range 20 {
		require.Equal(t, 200, s.ask(t, "GET", "/v1/calls/s/c", "", nil))
	}
	ctx, leave := context.WithCancel(t.Context())
	stream, err := follow(ctx, s.URL+"/v1/calls/s/c/events", "")
	require.NoError(t, err)
	require.Equal(t, before+1, active())
	leave()
	for range stream { // until its end
	}
	require.Eventually(t, func() bool { return active() == before }, time.Minute, 10*time.Millisecond)
}

// Output that was written while a client did not follow is not sent again: the first piece that it
// gets says so.
func TestStreams_TellWhatWasNotFollowed(t *testing.T) {
	t.Parallel()
	client := fleettest.Start(t)
	s := server{httptest.NewServer(httpapi.New(httpapi.Options{Client: client, Version: "test"})), client}
	defer s.Close()
	require.Equal(t, 202, s.ask(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "for i in $(seq 60000); do echo $i; sleep 0.02; done"}, "session_id": "s"}`, nil, "Idempotency-Key", "c"))
	for i, path := range []string{"/v1/calls/s/c/events", "/v1/calls/s/c/events", "/v1/sessions/s/events?output=true"} {
		ctx, leave := context.WithCancel(t.Context())
		next, err := follow(ctx, s.URL+path, "")
		require.NoError(t, err)
		var gaps []bool
		for m := range next {
			var piece httpapi.OutputPiece
			if m.kind == "output" {
				require.NoError(t, json.Unmarshal([]byte(m.data), &piece))
				if gaps = append(gaps, piece.Gap); len(gaps) == 20 {
					break
				}
			}
		}
		leave()
		require.Len(t, gaps, 20)
		if i > 0 { // the first one may have come in time
			require.True(t, gaps[0], path)
		}
		require.NotContains(t, gaps[1:], true, path)
	}
	require.Equal(t, 204, s.ask(t, "POST", "/v1/calls/s/c/cancel", "", nil))
}

// An id that no event has is refused: a reader behind it would miss what comes.
func TestStreams_ForgedIDsAreRefused(t *testing.T) {
	t.Parallel()
	client := fleettest.Start(t)
	talks(t, client, "s")(1)
	s := server{httptest.NewServer(httpapi.New(httpapi.Options{Client: client, Version: "test"})), client}
	defer s.Close()
	sequence, _, _ := strings.Cut(stored(t, client, "s", 1)[0], "-")
	for _, id := range []string{sequence + "-99", "99999-0", "18446744073709551615-0", "18446744073709551616-0", "x", "1", "-1-0", "1--1", "1-0-0", "0x1-0"} {
		var problem httpapi.Problem
		require.Equal(t, 422, s.ask(t, "GET", "/v1/sessions/s/events?until_turn_ended=true", "", &problem, "Last-Event-ID", id), id)
		require.EqualValues(t, "invalid", problem.Code)
		require.Contains(t, problem.Detail, id)
	}
	require.Equal(t, 404, s.ask(t, "GET", "/v1/sessions/none/events", "", nil, "Last-Event-ID", "1-0"), "it had events, and has none")
}

// Unknown paths and methods are problems, too, and no answer lets pages of other origins read it.
func TestProblems_OfTheRouter(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	for request, want := range map[string]int{
		"GET /": 404, "GET /v1/none": 404, "PATCH /v1/sessions": 405, "OPTIONS /v1/sessions": 405, "TRACE /v1/sessions/s": 405,
		"GET /v1/sessions/%2e%2e/file": 422, "GET /v1/calls/..%2f/x": 422, "POST /v1/sessions/./merge": 404, "POST /v1/sessions//cancel": 404,
		"DELETE /v1/sessions/../lanes": 404,
	} {
		method, path, _ := strings.Cut(request, " ")
		r, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, nil)
		require.NoError(t, err)
		r.Header.Set("Origin", "http://evil.example")
		answer, err := s.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Contains(t, []int{want, 403}, answer.StatusCode, request)
		require.Equal(t, "application/problem+json", answer.Header.Get("Content-Type"), request)
		for name := range answer.Header {
			require.NotContains(t, name, "Access-Control", request)
		}
	}
	status, body := s.send(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "true"}}`, "Origin", "http://evil.example")
	require.Equal(t, 403, status, "%s", body)
	status, body = s.send(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": {"command": "`+strings.Repeat("x", httpapi.MaxBody)+`"}}`)
	require.Equal(t, 413, status, "%.300s", body)
	status, body = s.send(t, "POST", "/v1/calls", `{"tool": "bash"}`, "Content-Type", "text/plain")
	require.Equal(t, 415, status, "%s", body)
	require.Contains(t, string(body), "must be application/json")
	status, body = s.send(t, "POST", "/v1/calls", `{"tool": "bash", "arguments": null, "delivery": "rollback", "retry": {"attempts": 0}}`)
	require.Equal(t, 422, status, "%s", body)
}
