package toolserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dying is a sandbox whose program dies at each start of the first ones, and is a server after
// that.
type dying struct {
	sandbox.Sandbox

	dies   int
	starts []time.Time
}

// Exec implements [sandbox.Sandbox].
func (d *dying) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	if d.starts = append(d.starts, time.Now()); len(d.starts) <= d.dies {
		return sandbox.Result{Reason: sandbox.ReasonExited, ExitCode: 1}, nil
	}
	input, fed := io.Pipe()
	go func() {
		defer fed.Close()
		for {
			select {
			case data, more := <-cmd.Feed:
				if !more {
					return
				}
				_, _ = fed.Write(data) // fails when the server has ended
			case <-ctx.Done():
				return
			}
		}
	}()
	_ = toolservertest.New().Run(ctx, &mcp.IOTransport{Reader: input, Writer: live(cmd.Live)}) // it is ended
	return sandbox.Result{Reason: sandbox.ReasonCancelled}, nil
}

// live is the standard output of a program.
type live func(sandbox.Stream, []byte)

// Write implements [io.Writer].
func (l live) Write(p []byte) (int, error) {
	l(sandbox.Stdout, p)
	return len(p), nil
}

// Close implements [io.Closer].
func (live) Close() error { return nil }

// A server that dies again and again is started later and later, and once it has answered at once
// again.
func TestServers_StartsAfterDeaths(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const dies = 14 // so that the last delays are the longest ones
		servers, box := toolserver.New(), &dying{dies: dies}
		t.Cleanup(func() { servers.End(); servers.Wait() })
		list := func() error {
			list, err := servers.List(t.Context(), toolserver.Surroundings{Sandbox: box}, protocol.MCPServer{Name: "s", Command: "p"})
			require.Equal(t, err == nil, len(list.Tools) > 0)
			return err
		}
		for range dies {
			require.ErrorContains(t, list(), "it exited with code 1")
		}
		require.NoError(t, list())
		servers.End()
		servers.Wait()
		require.NoError(t, list())
		require.Len(t, box.starts, dies+2)
		delay := func(start int) time.Duration { return box.starts[start].Sub(box.starts[start-1]) }
		require.GreaterOrEqual(t, delay(1), 500*time.Millisecond)
		require.LessOrEqual(t, delay(1), 1500*time.Millisecond)
		require.GreaterOrEqual(t, delay(2), 750*time.Millisecond)
		for start := dies - 1; start <= dies; start++ {
			require.GreaterOrEqual(t, delay(start), 30*time.Second)
			require.LessOrEqual(t, delay(start), 90*time.Second)
		}
		require.Zero(t, delay(dies+1))
	})
}

// slow is a sandbox whose program takes a while to end.
type slow struct{ dying }

// Exec implements [sandbox.Sandbox].
func (s *slow) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	result, err := s.dying.Exec(ctx, cmd)
	time.Sleep(time.Second)
	return result, err
}

// A call that begins when a server's idle time has just ended is answered by the next one.
func TestServers_ACallAfterTheIdleTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers, box := toolserver.New(), &slow{}
		t.Cleanup(func() { servers.End(); servers.Wait() })
		for range 3 {
			_, err := servers.Call(t.Context(), toolserver.Surroundings{Sandbox: box},
				protocol.MCPCall{Server: protocol.MCPServer{Name: "s", Command: "p"}, Tool: "pid"}, false)
			require.NoError(t, err)
			time.Sleep(toolserver.Idle + time.Millisecond)
		}
		require.Len(t, box.starts, 3)
	})
}

// How long a session with a server lasted is a metric.
func TestServers_MeasureSessions(t *testing.T) { //nolint:paralleltest // it sets the process's meter
	meter := telemetrytest.NewMeter(t)
	meter.Install()
	servers := toolserver.New()
	list, err := servers.List(t.Context(), toolserver.Surroundings{Sandbox: &dying{}}, protocol.MCPServer{Name: "s", Command: "p"})
	require.NoError(t, err)
	require.NotEmpty(t, list.Tools)
	servers.End()
	servers.Wait()
	measured := meter.Read(t, genaiconv.MetricMCPClientSession)
	require.Len(t, measured, 1)
	for attributes, count := range measured {
		require.Regexp(t, `^mcp\.protocol\.version=20\d\d-\d\d-\d\d,network\.transport=pipe$`, attributes)
		require.EqualValues(t, 1, count)
	}
}

// A call that ends while its server waits for its next start is not kept.
func TestServers_NobodyWaitsForAStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers, box := toolserver.New(), &dying{dies: 100}
		t.Cleanup(func() { servers.End(); servers.Wait() })
		list := func(ctx context.Context) error {
			_, err := servers.List(ctx, toolserver.Surroundings{Sandbox: box}, protocol.MCPServer{Name: "s", Command: "p"})
			return err
		}
		require.ErrorContains(t, list(t.Context()), "it exited with code 1")
		soon, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, list(soon), context.DeadlineExceeded)
		require.Equal(t, time.Millisecond, time.Since(begun))
		require.Len(t, box.starts, 1)
	})
}

// unreachable is a sandbox whose program finds no host.
type unreachable struct{ sandbox.Sandbox }

// Exec implements [sandbox.Sandbox].
func (unreachable) Exec(_ context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	cmd.Live(sandbox.Stderr, []byte("npm error code EAI_AGAIN\nnpm error request to https://registry.example/x failed"))
	return sandbox.Result{Reason: sandbox.ReasonExited, ExitCode: 1}, nil
}

func TestServers_SayHowToGiveNetwork(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{"/usr/bin/npx": "--allow-net npm", "uvx": "--allow-net pypi", "other": "--allow-net HOST"} {
		servers := toolserver.New()
		_, err := servers.List(t.Context(), toolserver.Surroundings{Sandbox: unreachable{}}, protocol.MCPServer{Name: "s", Command: command})
		require.ErrorContains(t, err, "EAI_AGAIN")
		require.ErrorContains(t, err, want)
		servers.End()
		servers.Wait()
	}
}

// A URL is in errors as it was written, and its secrets are in none.
func TestServers_ErrorsShowNoSecretsOfURLs(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/odd/s3cret" {
			http.Redirect(w, r, "/odd/s3cret?to=s3cret", http.StatusTemporaryRedirect)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte("no JSON")) // the client may have gone
	}))
	t.Cleanup(web.Close)
	host := strings.TrimPrefix(web.URL, "http://")
	for name, url := range map[string]string{
		"nobody listens":     "http://127.0.0.1:1/a/${KEY}/mcp?token=s3cret",
		"with a password":    "http://ann:s3cret@127.0.0.1:1/${KEY}",
		"no JSON":            "http://" + host + "/odd/${KEY}?token=${KEY}",
		"a redirect":         "http://" + host + "/${KEY}?token=${KEY}#s3cret",
		"what is no address": "http://ann:${KEY}@127.0.0.1:none/${KEY}?token=s3cret",
	} {
		servers, transport := toolserver.New(), &http.Transport{}
		at := toolserver.Surroundings{HTTP: transport, Logins: login.Store{Dir: t.TempDir()}, Variable: func(string) (string, error) { return "s3cret", nil }}
		_, err := servers.List(t.Context(), at, protocol.MCPServer{Name: "s", URL: url})
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "s3cret", name)
		servers.End()
		servers.Wait()
		transport.CloseIdleConnections()
	}
}

// odd answers a request as no server of the SDK does; "" is no answer.
func odd(request []byte) string {
	var r struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	if json.Unmarshal(request, &r) != nil || r.ID == nil {
		return ""
	}
	result := "{}"
	switch r.Method {
	case "initialize":
		result = `{"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}`
	case "server/discover":
		return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "error": {"code": -32601, "message": "no such method"}}`, r.ID)
	case "tools/call":
		result = map[string]string{
			"numbers": `{"content": [{"type": "text", "text": "n"}], "structuredContent": {"n": 9007199254740993, "f": 1.10}, "_meta": {"a": 1}}`,
			"unknown": `{"content": [{"type": "text", "text": "before"}, {"type": "video", "url": "x"}, 5]}`,
			"broken":  `{"content": {"type": "text"}}`,
			"feigned": `{"content": [], "_meta": {"toolfleet/structured": "no JSON"}}`,
		}[r.Params.Name]
	}
	return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "result": %s}`, r.ID, result)
}

// oddProgram is a sandbox whose program is that server.
type oddProgram struct {
	sandbox.Sandbox

	starts int
}

// Exec implements [sandbox.Sandbox].
func (o *oddProgram) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	o.starts++
	input, fed := io.Pipe()
	go func() {
		defer fed.Close()
		for {
			select {
			case data, more := <-cmd.Feed:
				if !more {
					return
				}
				_, _ = fed.Write(data) // fails when the server has ended
			case <-ctx.Done():
				return
			}
		}
	}()
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		if answer := odd(lines.Bytes()); answer != "" {
			cmd.Live(sandbox.Stdout, []byte(answer+"\n"))
		}
	}
	return sandbox.Result{Reason: sandbox.ReasonCancelled}, nil
}

// oddURL is that server at a URL, which answers by events or by plain messages.
func oddURL(t *testing.T, events bool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body)
		answer := odd(request)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case answer == "":
			w.WriteHeader(http.StatusAccepted)
		case events:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: message\ndata: %s\n\n", answer)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestCall_WhatTheSDKDoesNotCarry(t *testing.T) {
	t.Parallel()
	specs := map[string]protocol.MCPServer{
		"program": {Name: "odd", Command: "p"},
		"events":  {Name: "odd", URL: oddURL(t, true)},
		"plain":   {Name: "odd", URL: oddURL(t, false)},
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers, box := toolserver.New(), &oddProgram{}
			t.Cleanup(func() { servers.End(); servers.Wait() })
			base := &http.Transport{}
			t.Cleanup(base.CloseIdleConnections)
			at := toolserver.Surroundings{Sandbox: box, HTTP: base}
			call := func(tool string) (*protocol.MCPCallResult, error) {
				return servers.Call(t.Context(), at, protocol.MCPCall{Server: spec, Tool: tool}, false)
			}
			value, err := call("numbers")
			require.NoError(t, err)
			require.Equal(t, `{"n": 9007199254740993, "f": 1.10}`, string(value.Structured), "numbers are no floats")

			value, err = call("unknown")
			require.NoError(t, err)
			require.Len(t, value.Content, 3)
			require.Equal(t, "before", value.Content[0].Text)
			require.Equal(t, `[content of unknown type "video": {"type": "video", "url": "x"}]`, value.Content[1].Text)

			value, err = call("feigned")
			require.NoError(t, err)
			_, err = json.Marshal(value)
			require.NoError(t, err, "a result that cannot be stored ends no call")

			_, err = call("broken")
			require.ErrorContains(t, err, "MCP server odd: its answer cannot be read")
			require.NotContains(t, err.Error(), "cancelled")
			_, err = call("numbers")
			require.NoError(t, err)
			if spec.URL == "" {
				require.Equal(t, 1, box.starts, "no answer ends the server")
			}
		})
	}
}

// A call whose connection breaks may have run: it is never said to have failed, and runs again only
// if it may. One that was not sent has failed.
func TestCall_ALostAnswer(t *testing.T) {
	t.Parallel()
	hangUp := func(http.ResponseWriter) { panic(http.ErrAbortHandler) }
	for name, lose := range map[string]func(http.ResponseWriter){
		"before the answer": hangUp,
		"in its events": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprint(w, ": \n\n")
			_ = http.NewResponseController(w).Flush()
			hangUp(w)
		},
		"in its body": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"jsonrpc": "2.0",`)
			_ = http.NewResponseController(w).Flush()
			hangUp(w)
		},
		"its events end":               func(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") },
		"a gateway says so":            func(w http.ResponseWriter) { w.WriteHeader(http.StatusBadGateway) },
		"a gateway has not waited":     func(w http.ResponseWriter) { w.WriteHeader(http.StatusGatewayTimeout) },
		"the server refused to run it": func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				request, _ := io.ReadAll(r.Body)
				answer := odd(request)
				switch {
				case r.Method != http.MethodPost:
					w.WriteHeader(http.StatusMethodNotAllowed)
				case strings.Contains(string(request), `"tools/call"`) && ran.Add(1) == 1:
					lose(w)
				case answer == "":
					w.WriteHeader(http.StatusAccepted)
				default:
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, answer)
				}
			}))
			t.Cleanup(server.Close)
			base := &http.Transport{}
			t.Cleanup(base.CloseIdleConnections)
			call := func(again bool) error {
				servers := toolserver.New()
				defer func() { servers.End(); servers.Wait() }()
				_, err := servers.Call(t.Context(), toolserver.Surroundings{HTTP: base}, protocol.MCPCall{Server: protocol.MCPServer{Name: "odd", URL: server.URL}, Tool: "numbers"}, again)
				return err
			}
			code := func(err error) protocol.Code {
				fault, is := errors.AsType[*protocol.Error](err)
				require.True(t, is, "%v", err)
				return fault.Code
			}
			err := call(false)
			if name == "the server refused to run it" {
				require.Equal(t, protocol.CodeToolFailed, code(err))
				return
			}
			require.Equal(t, protocol.CodeOutcomeUnknown, code(err), err)
			require.Equal(t, int64(1), ran.Load())
			ran.Store(0)
			require.NoError(t, call(true), "it may run again")
			require.Equal(t, int64(2), ran.Load())
		})
	}
}

// A call whose answer is lost ends no other call of a server that answers.
func TestCall_ALostAnswerAmongOthers(t *testing.T) {
	t.Parallel()
	ran, end := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body)
		answer := odd(request)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case strings.Contains(string(request), `"unknown"`):
			w.WriteHeader(http.StatusGatewayTimeout)
			return
		case strings.Contains(string(request), `"numbers"`):
			close(ran)
			<-end
		case answer == "":
			w.WriteHeader(http.StatusAccepted)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(server.Close)
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	servers := toolserver.New()
	defer func() { servers.End(); servers.Wait() }()
	call := func(tool string) error {
		_, err := servers.Call(t.Context(), toolserver.Surroundings{HTTP: base}, protocol.MCPCall{Server: protocol.MCPServer{Name: "odd", URL: server.URL}, Tool: tool}, false)
		return err
	}
	long := make(chan error, 1)
	go func() { long <- call("numbers") }()
	<-ran
	fault, is := errors.AsType[*protocol.Error](call("unknown"))
	require.True(t, is)
	require.Equal(t, protocol.CodeOutcomeUnknown, fault.Code, fault)
	close(end)
	require.NoError(t, <-long)
}

// A call names itself and its trace to its server, in _meta.
func TestCall_NamesItsTrace(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 16)
	answers := oddURL(t, false)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- string(body)
		request, err := http.NewRequestWithContext(r.Context(), r.Method, answers, bytes.NewReader(body))
		if err != nil {
			return
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			return
		}
		defer func() { _ = response.Body.Close() }()
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	t.Cleanup(proxy.Close)
	servers := toolserver.New()
	t.Cleanup(func() { servers.End(); servers.Wait() })
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ctx := telemetry.ExtractMeta(t.Context(), map[string]any{"traceparent": parent})
	running := toolserver.Running{SessionID: "s", CallID: "c", Attempt: 2, Fence: 9}
	_, err := servers.Call(ctx, toolserver.Surroundings{HTTP: base, Running: &running},
		protocol.MCPCall{Server: protocol.MCPServer{Name: "odd", URL: proxy.URL}, Tool: "numbers"}, false)
	require.NoError(t, err)
	sent := ""
	for len(requests) > 0 {
		if request := <-requests; strings.Contains(request, `"tools/call"`) {
			sent = request
		}
	}
	require.Contains(t, sent, `"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-`)
	require.Contains(t, sent, `"progressToken"`)
	require.Contains(t, sent, `"toolfleet/call":{"session_id":"s","call_id":"c","attempt":2,"fence":9}`)
}
