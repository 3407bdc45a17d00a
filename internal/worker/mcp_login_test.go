package worker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/login"
	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/sandbox/egress"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ear keeps all that is written to it.
type ear struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements [io.Writer].
func (e *ear) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(p)
}

func (e *ear) heard() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}

// loginOptions are those of an isolating worker that reaches some hosts.
func (r *rig) loginOptions(t *testing.T, urls ...string) worker.Options {
	t.Helper()
	o := r.isolatedOptions(t)
	if !o.Caps.Enforces(isolation.NetworkProxy) {
		t.Skip("NOT TESTED: lists of hosts are not enforced here")
	}
	hosts := make([]string, len(urls))
	for i, url := range urls {
		hosts[i] = strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/mcp")
	}
	var err error
	o.Allow, err = egress.ParseAllow(strings.Join(hosts, ","))
	require.NoError(t, err)
	o.AllowPrivate = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return o
}

// logIn has a person log in whose browser opens every page at once.
func logIn(t *testing.T, data, name, url string) {
	t.Helper()
	web := &http.Transport{}
	defer web.CloseIdleConnections()
	var browser sync.WaitGroup
	defer browser.Wait()
	_, at, err := worker.LoginsIn(data).Of(name, url).LogIn(t.Context(), login.Person{Transport: web, Show: func(page, _ string) {
		browser.Go(func() {
			if _, err := logintest.Open(t.Context(), web, page); err != nil {
				t.Errorf("browser: %v", err)
			}
		})
	}})
	require.NoError(t, err)
	require.NotEmpty(t, at)
}

// A worker uses a login of a person, renews it, and says what to run when it has ended. Nobody sees
// a token: not the fleet, not a log, not a sandbox.
func TestMCP_ALogin(t *testing.T) {
	t.Parallel()
	r, web := newRig(t), logintest.Start(t, toolservertest.New)
	o := r.loginOptions(t, web.URL, web.Authority)
	wires, logs := &ear{}, &ear{}
	all, err := r.Connect().Subscribe(">", func(m *nats.Msg) { _, _ = fmt.Fprintf(wires, "%s %v %s\n", m.Subject, m.Header, m.Data) })
	require.NoError(t, err)
	require.NoError(t, all.SetPendingLimits(-1, -1))
	o.Logger = slog.New(slog.NewTextHandler(logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w, stop := r.work(o)
	session := protocol.NewSessionID()
	server := protocol.MCPServer{Name: "web", URL: web.URL}
	needs := func(why string) {
		t.Helper()
		got := r.do(session, serverCall(server, "count", `{}`))
		requireFault(t, got, protocol.StatusRejected, codes.LoginRequired)
		require.Contains(t, got.Error.Message, why)
		require.Contains(t, got.Error.Message, fmt.Sprintf(`run "worker login web --data %s --mcp-config FILE" where worker %s runs`, o.Data, w.ID()))
	}
	begun := time.Now()
	for range 10 {
		needs("nobody has logged in")
	}
	require.Less(t, time.Since(begun), 30*time.Second, "a server is started later and later because nobody has logged in")
	logIn(t, o.Data, "web", web.URL)
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, serverCall(server, "count", `{}`))))
	web.Revoke(false)
	require.Equal(t, "2 calls, 0 overlap", said(t, r.do(session, serverCall(server, "count", `{}`))))
	web.Revoke(true)
	needs("not accepted any more")
	logIn(t, o.Data, "web", web.URL)
	require.Equal(t, "3 calls, 0 overlap", said(t, r.do(session, serverCall(server, "count", `{}`))))

	seen := r.do(session, protocol.CommandRun{Command: fmt.Sprintf("cat %s; env; cat /proc/*/environ; true", worker.LoginsIn(o.Data).Of("web", web.URL).File())})
	requireOK(t, seen)
	stop()
	require.NoError(t, all.Drain())
	require.NotEmpty(t, web.Secrets())
	require.Contains(t, wires.heard(), "3 calls, 0 overlap")
	output := value[protocol.CommandRunResult](t, seen)
	for _, secret := range web.Secrets() {
		for _, text := range []string{wires.heard(), logs.heard(), fmt.Sprint(output)} {
			require.NotContains(t, text, secret)
		}
	}
}

// Two workers with one directory of logins find at once that they are not let in.
func TestMCP_TwoWorkersRenewALoginOnce(t *testing.T) {
	t.Parallel()
	r, web := newRig(t), logintest.Start(t, toolservertest.New)
	one := r.options()
	one.Allow, _ = egress.ParseAllow("all")
	one.Slots = 1
	two := one
	two.Data, two.Logins = t.TempDir(), worker.LoginsIn(one.Data)
	two.Logins.Advice = func(string) string { return "" }
	_, stopOne := r.work(one)
	_, stopTwo := r.work(two)
	logIn(t, one.Data, "web", web.URL)
	web.Revoke(false)
	var calls []protocol.Call
	for range 2 {
		call := newCall(protocol.NewSessionID(), serverCall(protocol.MCPServer{Name: "web", URL: web.URL}, "count", `{}`))
		calls = append(calls, call)
	}
	workers := map[protocol.WorkerID]bool{}
	for _, result := range r.all(calls) {
		require.Equal(t, "1 calls, 0 overlap", said(t, result))
		workers[result.WorkerID] = true
	}
	require.Len(t, workers, 2)
	renewals := 0
	for _, form := range web.Asked() {
		if form.Get("grant_type") == "refresh_token" {
			renewals++
		}
	}
	require.Equal(t, 1, renewals)
	stopOne()
	stopTwo()
}

// A client logs in by itself, with what stands for its secret. Authorization servers are reached as
// other servers are: where the network allows it.
func TestMCP_AClient(t *testing.T) {
	t.Parallel()
	web := logintest.Start(t, toolservertest.New)
	server := protocol.MCPServer{Name: "web", URL: web.URL, Client: &protocol.MCPClient{ID: logintest.Client, Secret: "${NOT_ALLOWED:-" + logintest.Secret + "}"}}
	for name, hosts := range map[string][]string{"allowed": {web.URL, web.Authority}, "not allowed": {web.URL}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			o := r.loginOptions(t, hosts...)
			_, stop := r.work(o)
			defer stop()
			got := r.do(protocol.NewSessionID(), serverCall(server, "count", `{}`))
			if name == "allowed" {
				require.Equal(t, "1 calls, 0 overlap", said(t, got))
				return
			}
			require.Equal(t, protocol.StatusFailed, got.Status)
			require.Contains(t, got.Error.Message, "network_off: "+strings.TrimPrefix(web.Authority, "http://")+" must not be reached")
		})
	}
}

// A server at a URL is reached from the worker, where the network allows it and with its headers;
// it has one session for each of ours.
func TestMCP_AServerAtAURL(t *testing.T) {
	t.Parallel()
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return toolservertest.New() }, nil)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+os.Getenv("PATH") {
			http.Error(w, "who is it?", http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	r := newRig(t)
	o := r.isolatedOptions(t)
	if !o.Caps.Enforces(isolation.NetworkProxy) {
		t.Skip("NOT TESTED: lists of hosts are not enforced here")
	}
	allow, err := egress.ParseAllow(strings.TrimPrefix(web.URL, "http://"))
	require.NoError(t, err)
	o.Allow, o.AllowPrivate, o.MCPEnv = allow, []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, []string{"PATH"}
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	server := protocol.MCPServer{Name: "web", URL: web.URL, Headers: map[string]string{"Authorization": "Bearer ${PATH}"}}
	count := func(session protocol.SessionID) string {
		return said(t, r.do(session, serverCall(server, "count", `{}`)))
	}
	require.Equal(t, "1 calls, 0 overlap", count(session))
	require.Equal(t, "2 calls, 0 overlap", count(session))
	require.Equal(t, "1 calls, 0 overlap", count(protocol.NewSessionID()))

	server.Headers = nil
	stranger := r.do(session, wire.MCPList{Server: server})
	requireFault(t, stranger, protocol.StatusRejected, codes.LoginRequired)
	require.Contains(t, stranger.Error.Message, "MCP server web needs a login: nobody has logged in (401 Unauthorized)")
	elsewhere := r.do(session, wire.MCPList{Server: protocol.MCPServer{Name: "elsewhere", URL: "http://127.0.0.1:1/mcp"}})
	requireFault(t, elsewhere, protocol.StatusRejected, codes.NetworkOff)
	require.Contains(t, elsewhere.Error.Message, "it is not listed")
	stop() // before the server, whose streams it has
}

func serverCall(server protocol.MCPServer, tool, arguments string) protocol.MCPCall {
	return protocol.MCPCall{Server: server, Tool: tool, Arguments: json.RawMessage(arguments)}
}
