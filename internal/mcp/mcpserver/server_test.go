package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	toolsmcp "github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

func TestMain(m *testing.M) {
	natsiotest.Overlap()
	goleak.VerifyTestMain(m)
}

// open returns a server whose fleet has a worker, and the directory of its workspaces. Each change
// is made of its options.
func open(tb testing.TB, changes ...func(*mcpserver.Options)) (*mcpserver.Server, string) {
	tb.Helper()
	logger := slog.New(slog.DiscardHandler)
	servers := natsiotest.New(tb, natsio.Topology{})
	fl := &fleet.Fleet{Name: servers.Name, NC: servers.Connect(), Logger: logger}
	require.NoError(tb, fl.Open(tb.Context(), true))
	tb.Cleanup(fl.Close)
	workspace, driver := tb.TempDir(), process.New(nil)
	_, err := fl.StartWorker(tb.Context(), worker.Options{
		Options: lane.Options{Slots: 16}, Data: tb.TempDir(), Alone: true,
		Settings: sandboxes.Settings{
			Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}, Env: map[string]string{"PATH": os.Getenv("PATH")},
			Workspace: func(sandbox string) (string, bool) {
				dir := filepath.Join(workspace, sandbox)
				return dir, os.MkdirAll(dir, 0o755) == nil
			},
		},
		Capabilities: kinds.Capabilities{Handlers: kinds.Handlers{Calls: map[protocol.Kind]kinds.Handler{"echo": echo}}},
	})
	require.NoError(tb, err)
	set, err := toolset.Named("core", "jobs")
	require.NoError(tb, err)
	table, err := tools.NewTable(set...)
	require.NoError(tb, err)
	key, err := fl.Secret(tb.Context())
	require.NoError(tb, err)
	o := mcpserver.Options{
		Fleet: mcpserver.Fleet{Name: fl.Name, At: fl.Conn, Dispatcher: fl.Dispatcher, Journal: fl.Journal},
		Tasks: mcpserver.Tasks{Key: key}, Tools: table, Logger: logger,
	}
	for _, change := range changes {
		change(&o)
	}
	s := mcpserver.New(o)
	tb.Cleanup(s.Close)
	return s, workspace
}

// shared is one sandbox for every client.
func shared(o *mcpserver.Options) { o.Session = "shared" }

// run serves a transport until the test ends.
func run(tb testing.TB, s *mcpserver.Server, transport mcp.Transport) {
	tb.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(tb.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx, transport) // it ends with its client, or with ctx
	}()
	tb.Cleanup(func() { stop(); <-done })
}

// connect connects a client by a pipe.
func connect(tb testing.TB, s *mcpserver.Server, o *mcp.ClientOptions) *mcp.ClientSession {
	tb.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	run(tb, s, theirs)
	return client(tb, ours, o)
}

func client(tb testing.TB, transport mcp.Transport, o *mcp.ClientOptions) *mcp.ClientSession {
	tb.Helper()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o).Connect(tb.Context(), transport, nil)
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = session.Close() }) // the test may have closed it
	return session
}

func call(t *testing.T, c *mcp.ClientSession, tool string, arguments any) *mcp.CallToolResult {
	t.Helper()
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	require.NoError(t, err)
	return result
}

func bash(t *testing.T, c *mcp.ClientSession, command string) *mcp.CallToolResult {
	t.Helper()
	return call(t, c, "bash", map[string]any{"command": command})
}

// as is a value of a type that it must have.
func as[T any](t *testing.T, value any) T {
	t.Helper()
	typed, ok := value.(T)
	require.True(t, ok, "%T", value)
	return typed
}

func text(t *testing.T, r *mcp.CallToolResult) string {
	t.Helper()
	return as[*mcp.TextContent](t, r.Content[0]).Text
}

func field(t *testing.T, r *mcp.CallToolResult, name string) any {
	t.Helper()
	return as[map[string]any](t, r.StructuredContent)[name]
}

func TestTools_AreDescribed(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	listed, err := connect(t, s, nil).ListTools(t.Context(), nil)
	require.NoError(t, err)
	byName := map[string]*mcp.Tool{}
	for _, tool := range listed.Tools {
		byName[tool.Name] = tool
	}
	require.Len(t, byName, len(toolset.Core()), "tools of a loop are left out")
	require.True(t, byName["read"].Annotations.ReadOnlyHint)
	require.True(t, byName["read"].Annotations.IdempotentHint)
	require.False(t, *byName["read"].Annotations.OpenWorldHint)
	require.False(t, byName["bash"].Annotations.ReadOnlyHint)
	require.True(t, *byName["bash"].Annotations.DestructiveHint)
	require.True(t, *byName["bash"].Annotations.OpenWorldHint)
	require.True(t, byName["write"].Annotations.IdempotentHint)
	require.Equal(t, "Json read", byName["json_read"].Title)
	require.Contains(t, as[map[string]any](t, byName["bash"].InputSchema)["properties"], "command")
	require.Contains(t, as[map[string]any](t, byName["bash"].OutputSchema)["properties"], "status")
}

func TestCall_AnswersTextAndTypes(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	c := connect(t, s, nil)
	result := bash(t, c, "echo hello; exit 3")
	require.False(t, result.IsError, "a command that exits 3 has run")
	require.Equal(t, "hello\n[exit code 3]", text(t, result))
	require.Equal(t, "ok", field(t, result, "status"))
	require.InDelta(t, 3, as[map[string]any](t, field(t, result, "value"))["exit_code"], 0)

	result = call(t, c, "read", map[string]any{"path": "none"})
	require.True(t, result.IsError)
	require.Equal(t, "not_found", as[map[string]any](t, field(t, result, "error"))["code"])

	result = call(t, c, "read", map[string]any{"file": 1})
	require.True(t, result.IsError, "a model can mend it")
	require.Contains(t, text(t, result), "path")
	require.Equal(t, "rejected", field(t, result, "status"))

	_, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "rm"})
	require.ErrorContains(t, err, "rm")

	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("\x00", 100)
	require.Equal(t, "ok", field(t, bash(t, c, `printf '\211PNG\r\n\032\n' >a.png; head -c 100 /dev/zero >>a.png`), "status"))
	result = call(t, c, "read", map[string]any{"path": "a.png"})
	require.Len(t, result.Content, 2)
	image := as[*mcp.ImageContent](t, result.Content[1])
	require.Equal(t, "image/png", image.MIMEType)
	require.Equal(t, png, string(image.Data))

	require.Equal(t, "ok", field(t, bash(t, c, `echo %PDF-1.7 >a.pdf`), "status"))
	result = call(t, c, "read", map[string]any{"path": "a.pdf"})
	require.Len(t, result.Content, 2)
	document := as[*mcp.EmbeddedResource](t, result.Content[1]).Resource
	require.Equal(t, "application/pdf", document.MIMEType)
	require.Equal(t, "%PDF-1.7\n", string(document.Blob))
}

// TestCall_KeepsTheOrderOfItsStream writes many calls at once, without a wait for any answer.
func TestCall_KeepsTheOrderOfItsStream(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared)
	ours, theirs := mcp.NewInMemoryTransports()
	run(t, s, theirs)
	raw, err := ours.Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() }) // the server may have
	// A busy machine takes less for all of them than what makes a call go on by itself.
	const calls = 30
	requests := []*jsonrpc.Request{request(t, 0, "initialize", `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)}
	for i := 1; i <= calls; i++ {
		requests = append(requests, request(t, i, "tools/call", fmt.Sprintf(`{"name":"bash","arguments":{"command":"echo %d >>log"}}`, i)))
	}
	go func() {
		for _, r := range requests {
			_ = raw.Write(t.Context(), r) // what is lost has no answer
		}
	}()
	for range calls + 1 {
		message, err := raw.Read(t.Context())
		require.NoError(t, err)
		require.NoError(t, as[*jsonrpc.Response](t, message).Error)
	}
	log, err := os.ReadFile(filepath.Join(workspace, "shared", "log"))
	require.NoError(t, err)
	for i, line := range strings.Fields(string(log)) {
		require.Equal(t, strconv.Itoa(i+1), line, "%s", log)
	}
	require.Len(t, strings.Fields(string(log)), calls)
}

func request(t *testing.T, id int, method, params string) *jsonrpc.Request {
	t.Helper()
	message, err := jsonrpc.DecodeMessage([]byte(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, id, method, params)))
	require.NoError(t, err)
	return as[*jsonrpc.Request](t, message)
}

// TestCall_IsJournaled: the session of a client has its calls, by whichever coordinator.
func TestCall_IsJournaled(t *testing.T) {
	t.Parallel()
	var first mcpserver.Options
	s, _ := open(t, shared, func(o *mcpserver.Options) { first = *o })
	second := mcpserver.New(first)
	one, two := connect(t, s, nil), connect(t, second, nil)
	for range 3 {
		require.Equal(t, "1\n", text(t, bash(t, one, "echo 1")))
		require.Equal(t, "2\n", text(t, bash(t, two, "echo 2")))
	}
	history, err := first.Journal.Load(t.Context(), "shared")
	require.NoError(t, err)
	var said []string
	for _, e := range history.Events {
		if e.Type == loop.EventToolResult {
			require.Equal(t, "bash", e.Name)
			said = append(said, e.Content)
			require.Equal(t, len(said), e.Turn)
		}
	}
	require.Equal(t, []string{"1\n", "2\n", "1\n", "2\n", "1\n", "2\n"}, said)
}

func TestCall_ProgressAndCancel(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared)
	told := make(chan string, 100)
	c := connect(t, s, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, n *mcp.ProgressNotificationClientRequest) {
		told <- n.Params.Message
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "sleep 1000 & echo $! >pid; echo begun; wait"}}
		params.SetProgressToken("p")
		_, err := c.CallTool(ctx, params)
		ended <- err
	}()
	for said := range told {
		if strings.Contains(said, "begun") {
			break
		}
	}
	cancel()
	require.Error(t, <-ended)
	pid, err := os.ReadFile(filepath.Join(workspace, "shared", "pid"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z")
	}, time.Minute, 10*time.Millisecond, "its process goes on")
}

func TestResources(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	c := connect(t, s, nil)
	templates, err := c.ListResourceTemplates(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, templates.ResourceTemplates, 2)
	read := func(uri string) *mcp.ResourceContents {
		t.Helper()
		result, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		require.NoError(t, err)
		require.Len(t, result.Contents, 1)
		return result.Contents[0]
	}
	result := bash(t, c, `mkdir "a b"; echo text >"a b/f.txt"; printf '\0\1' >bin; seq 1 200000`)
	require.Equal(t, "text\n", read("toolfleet://workspace/a%20b/f.txt").Text)
	require.Equal(t, []byte{0, 1}, read("toolfleet://workspace/bin").Blob)

	link := as[*mcp.ResourceLink](t, result.Content[1])
	var whole strings.Builder
	for uri := link.URI; uri != ""; {
		page := read(uri)
		whole.WriteString(page.Text)
		uri, _ = page.Meta["toolfleet/next"].(string)
	}
	require.Equal(t, 1288895, whole.Len(), "all of seq 1 200000")
	require.True(t, strings.HasSuffix(whole.String(), "\n199999\n200000\n"))

	for _, uri := range []string{"toolfleet://workspace/none", "toolfleet://workspace/../x", "toolfleet://result/none", "file:///etc/passwd"} {
		_, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		var wire *jsonrpc.Error
		require.ErrorAs(t, err, &wire, uri)
		require.EqualValues(t, jsonrpc.CodeInvalidParams, wire.Code, uri)
	}
}

func TestApproval(t *testing.T) {
	t.Parallel()
	asks, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"bash"}}})
	require.NoError(t, err)
	s, _ := open(t, shared, func(o *mcpserver.Options) { o.Policy, o.ClientApproves = asks, true })
	var asked string
	answers := func(action string) *mcp.ClientOptions {
		return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked = r.Params.Message
			return &mcp.ElicitResult{Action: action, Content: map[string]any{"note": "be quick"}}, nil
		}}
	}
	result := bash(t, connect(t, s, answers("accept")), "echo done")
	require.Equal(t, "ok", field(t, result, "status"))
	require.Contains(t, text(t, result), "done")
	require.Contains(t, text(t, result), "be quick")
	require.Contains(t, asked, "echo done")

	result = bash(t, connect(t, s, answers("decline")), "echo done")
	require.Equal(t, "policy_denied", as[map[string]any](t, field(t, result, "error"))["code"])

	result = bash(t, connect(t, s, nil), "echo done")
	require.Contains(t, text(t, result), "cannot ask a person")

	// Whether a person answers, or the client itself, cannot be known: it counts only if that is
	// wanted.
	own, _ := open(t, shared, func(o *mcpserver.Options) { o.Policy = asks })
	asked = ""
	result = bash(t, connect(t, own, answers("accept")), "echo done")
	require.Equal(t, "policy_denied", as[map[string]any](t, field(t, result, "error"))["code"])
	require.Contains(t, text(t, result), "--mcp-client-approves")
	require.Empty(t, asked)

	forged := connect(t, s, nil)
	params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": "echo done"}}
	params.InputResponses, params.RequestState = mcp.InputResponseMap{"approval": &mcp.ElicitResult{Action: "accept"}}, "forged"
	_, err = forged.CallTool(t.Context(), params)
	var wire *jsonrpc.Error
	require.ErrorAs(t, err, &wire, "an answer to a question that was not put")
	require.EqualValues(t, jsonrpc.CodeInvalidParams, wire.Code)
	require.Contains(t, wire.Message, "requestState")
}

// The client's person answers ask_user.
func TestAskUser(t *testing.T) {
	t.Parallel()
	set, err := toolset.Named("ask")
	require.NoError(t, err)
	table, err := tools.NewTable(set...)
	require.NoError(t, err)
	s, _ := open(t, shared, func(o *mcpserver.Options) { o.Tools = table })
	var asked *mcp.ElicitParams
	ask := func(action, answer string) *mcp.CallToolResult {
		c := connect(t, s, &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked = r.Params
			return &mcp.ElicitResult{Action: action, Content: map[string]any{"answer": answer}}, nil
		}})
		result, err := c.CallTool(t.Context(), &mcp.CallToolParams{Name: "ask_user", Arguments: map[string]any{"question": "Which?", "choices": []string{"a", "b"}}})
		require.NoError(t, err)
		return result
	}
	result := ask("accept", "b")
	require.Equal(t, "ok", field(t, result, "status"))
	require.Equal(t, "b", text(t, result))
	require.Equal(t, "Which?", asked.Message)
	require.Contains(t, fmt.Sprint(asked.RequestedSchema), "enum")
	require.Contains(t, text(t, ask("decline", "")), "declined to answer")

	result, err = connect(t, s, nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "ask_user", Arguments: map[string]any{"question": "Which?"}})
	require.NoError(t, err)
	require.Contains(t, text(t, result), "the client cannot ask a person")
}

// bearer adds a token to requests.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.token != "" {
		r.Header.Set("Authorization", "Bearer "+b.token)
	}
	return http.DefaultTransport.RoundTrip(r)
}

func overHTTP(url, token string) mcp.Transport {
	return &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer{token}}}
}

const (
	useToken  = "0123456789abcdef-use"
	readToken = "0123456789abcdef-read"
)

func serveHTTP(t *testing.T, s *mcpserver.Server) string {
	t.Helper()
	tokens, err := access.ReadTokens(strings.NewReader("# who\nann use " + useToken + "\nbob read " + readToken + "\n"))
	require.NoError(t, err)
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{
		Access: access.NewTokens(tokens...), Resource: "https://tools.example.com/mcp", AuthorizationServers: []string{"https://login.example.com"},
	}))
	t.Cleanup(web.Close)
	t.Cleanup(as[*http.Transport](t, http.DefaultTransport).CloseIdleConnections)
	return web.URL + "/mcp"
}

func TestHTTP_EachClientHasItsSandbox(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	url := serveHTTP(t, s)
	one, two := client(t, overHTTP(url, useToken), nil), client(t, overHTTP(url+"/two", useToken), nil)
	require.Equal(t, "ok", field(t, bash(t, one, "echo 1 >f"), "status"))
	require.Contains(t, text(t, bash(t, two, "ls; echo 2 >f")), "no output")
	again := client(t, overHTTP(url+"/two", useToken), nil)
	require.Equal(t, "2\n", text(t, bash(t, again, "cat f")), "the key of the URL is that of the sandbox")
}

// A client's calls are of the tenant of its token; those in a session that the operator has opened
// are the operator's, whoever comes first.
func TestHTTP_TheTokenSaysTheTenant(t *testing.T) {
	t.Parallel()
	tokens, err := access.ReadTokens(strings.NewReader("ann use " + useToken + " acme\nbob use " + readToken + "\n"))
	require.NoError(t, err)
	t.Cleanup(as[*http.Transport](t, http.DefaultTransport).CloseIdleConnections)
	var journal loop.Journal
	opened := func(o *mcpserver.Options) { journal = o.Journal }
	for name, options := range map[string][]func(*mcpserver.Options){"own": {offerEcho(t)}, "shared": {shared, offerEcho(t), opened}} {
		s, _ := open(t, options...)
		web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{Access: access.NewTokens(tokens...)}))
		t.Cleanup(web.Close)
		for token, tenant := range map[string]string{useToken: "acme", readToken: ""} {
			if name == "shared" {
				tenant = ""
			}
			result := call(t, client(t, overHTTP(web.URL+"/mcp", token), nil), "echo", json.RawMessage(`{"whose": "?", "tenant": "other"}`))
			require.Equal(t, map[string]any{"tenant": tenant}, as[map[string]any](t, field(t, result, "value"))["output"], name)
		}
	}
	history, err := journal.Load(t.Context(), "shared")
	require.NoError(t, err)
	require.True(t, history.Owned())
	require.Equal(t, judge.Owner{Tenant: judge.DefaultTenant}, judge.OwnerOf(history))
}

// Whoever may read only never gets a tool that changes something, also not later.
func TestHTTP_ReadersGetHarmlessToolsOnly(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	url := serveHTTP(t, s)
	names := func(token string) (names []string) {
		listed, err := client(t, overHTTP(url, token), nil).ListTools(t.Context(), nil)
		require.NoError(t, err)
		for _, tool := range listed.Tools {
			names = append(names, tool.Name)
		}
		return names
	}
	require.Contains(t, names(readToken), "grep")
	require.NotContains(t, names(readToken), "bash")
	_, err := client(t, overHTTP(url, readToken), nil).CallTool(t.Context(), &mcp.CallToolParams{Name: "bash"})
	require.ErrorContains(t, err, "bash", "also who knows its name does not get it")
	set, err := toolset.Named("core")
	require.NoError(t, err)
	table, err := tools.NewTable(set...)
	require.NoError(t, err)
	s.SetTools(table.Only([]string{"read", "bash"}))
	require.Equal(t, []string{"read"}, names(readToken))
	require.Equal(t, []string{"bash", "read"}, names(useToken))

	servers, faults := toolsmcp.Parse([]byte(`{"mcpServers": {"s": {"command": "p", "toolfleet": {"tools": {
		"checked": {"resources": [{"key": "sandbox/{$sandbox}", "access": "shared"}]}
	}}}}}`))
	require.Empty(t, faults)
	schema := json.RawMessage(`{"type": "object"}`)
	made, faults := mcptools.ToolsOf(&servers[0], []wire.MCPTool{{Name: "claims", Schema: schema, ReadOnly: true}, {Name: "checked", Schema: schema}})
	require.Empty(t, faults)
	table, err = tools.NewTable(made...)
	require.NoError(t, err)
	s.SetTools(table)
	require.Equal(t, []string{"s__checked"}, names(readToken), "what a server says of its tools is no reason to trust it")
	require.Equal(t, []string{"s__checked", "s__claims"}, names(useToken))
}

func TestHTTP_TokensAndWebPages(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	url := serveHTTP(t, s)
	listed, err := client(t, overHTTP(url, readToken), nil).ListTools(t.Context(), nil)
	require.NoError(t, err)
	for _, tool := range listed.Tools {
		require.True(t, tool.Annotations.ReadOnlyHint, tool.Name)
	}
	for name, c := range map[string]struct {
		header map[string]string
		body   string
		status int
	}{
		"no token":     {status: http.StatusUnauthorized},
		"wrong token":  {header: map[string]string{"Authorization": "Bearer " + useToken + "x"}, status: http.StatusUnauthorized},
		"a web page":   {header: map[string]string{"Authorization": "Bearer " + useToken, "Origin": "https://evil.example.com"}, status: http.StatusForbidden},
		"another name": {header: map[string]string{"Authorization": "Bearer " + useToken, "Host": "evil.example.com"}, status: http.StatusForbidden},
		"a giant": {
			header: map[string]string{"Authorization": "Bearer " + useToken},
			body:   strings.Repeat(" ", mcpserver.MaxBody+1), status: http.StatusRequestEntityTooLarge,
		},
		"no JSON": {header: map[string]string{"Authorization": "Bearer " + useToken}, body: "{", status: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.body == "" {
				c.body = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
			}
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(c.body))
			require.NoError(t, err)
			request.Header.Set("Content-Type", "application/json")
			request.Header.Set("Accept", "application/json, text/event-stream")
			for name, value := range c.header {
				request.Header.Set(name, value)
			}
			request.Host = request.Header.Get("Host")
			response, err := http.DefaultClient.Do(request)
			require.NoError(t, err)
			defer response.Body.Close()
			require.Equal(t, c.status, response.StatusCode)
			if c.status == http.StatusUnauthorized {
				require.Contains(t, response.Header.Get("WWW-Authenticate"), "https://tools.example.com/.well-known/oauth-protected-resource")
			}
		})
	}
	response, err := http.Get(strings.TrimSuffix(url, "/mcp") + "/.well-known/oauth-protected-resource") //nolint:noctx // it answers at once
	require.NoError(t, err)
	defer response.Body.Close()
	var metadata map[string]any
	require.NoError(t, json.NewDecoder(response.Body).Decode(&metadata))
	require.Equal(t, []any{"https://login.example.com"}, metadata["authorization_servers"])
}

func TestResources_AreNoCaches(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared)
	require.NoError(t, os.MkdirAll(filepath.Join(workspace, "shared"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(workspace, "shared", "f"), []byte("x"), 0o600))
	read, err := connect(t, s, nil).ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
	require.NoError(t, err)
	require.Equal(t, "private", read.CacheScope)
}

func TestReadTokens_EveryFault(t *testing.T) {
	t.Parallel()
	_, err := access.ReadTokens(strings.NewReader("ann use\nbob admin 0123456789abcdef\ncid read short\n"))
	require.ErrorIs(t, err, access.ErrTokens)
	require.ErrorContains(t, err, "line 1: must have a name, a role and a token, and may have a tenant and expires=TIME, but has 2 words")
	require.ErrorContains(t, err, `line 2: role "admin": must be read, run or operate`)
	require.ErrorContains(t, err, "line 3")
	_, err = access.ReadTokens(strings.NewReader("ann run 0123456789abcdef expires=tomorrow\n"))
	require.ErrorContains(t, err, `line 1: expires "tomorrow": must be a time such as 2030-01-31T00:00:00Z`)
	_, err = access.ReadTokens(strings.NewReader("ann use 0123456789abcdef ACME\n"))
	require.ErrorContains(t, err, `line 1: invalid name: tenant "ACME"`)
	_, err = access.ReadTokens(strings.NewReader("ann use 0123456789abcdef\nbob read 0123456789abcdef\n"))
	require.ErrorContains(t, err, `line 2: the token of "bob" is that of "ann", too`)
	_, err = access.ReadTokens(strings.NewReader("\n"))
	require.ErrorContains(t, err, "there is none")
}

// A call continues the trace that its client names in _meta, up to the worker.
func TestCall_ContinuesTheTraceOfItsClient(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, offerEcho(t))
	c := connect(t, s, nil)
	const traceID = "4bf92f3577b34da6a3ce929d0e0e4736"
	result, err := c.CallTool(t.Context(), &mcp.CallToolParams{
		Meta: mcp.Meta{"traceparent": "00-" + traceID + "-00f067aa0ba902b7-01"}, Name: "echo", Arguments: json.RawMessage(`{"trace": true}`),
	})
	require.NoError(t, err)
	require.Contains(t, text(t, result), traceID)
	require.NotContains(t, text(t, call(t, c, "echo", json.RawMessage(`{"trace": true}`))), traceID)
}

// echo answers with its arguments, or with the tenant or the trace of its call if it is asked for
// that.
func echo(ctx context.Context, a *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
	switch {
	case strings.Contains(string(arguments), `"whose"`):
		return json.Marshal(map[string]protocol.Tenant{"tenant": a.Run.Call.Tenant})
	case strings.HasPrefix(string(arguments), `{"trace"`):
		return json.Marshal(telemetry.TraceID(ctx))
	}
	return arguments, nil
}

// TestCall_AnswersWhatAToolMadeItself: a tool of the user's own that answers in the protocol's
// words is answered with these.
func TestCall_AnswersWhatAToolMadeItself(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared, offerEcho(t))
	c := connect(t, s, nil)
	result := call(t, c, "echo", json.RawMessage(`{"content": [{"type": "audio", "data": "AAE=", "mimeType": "audio/wav"}], "isError": true}`))
	require.Len(t, result.Content, 1)
	require.Equal(t, []byte{0, 1}, as[*mcp.AudioContent](t, result.Content[0]).Data)
	require.True(t, result.IsError)
	require.Nil(t, field(t, result, "value"), "it is there already")
	for _, other := range []string{`{"content": "text"}`, `{"content": [{"type": "none"}]}`, `{"content": []}`, `{"a": 1}`} {
		result = call(t, c, "echo", json.RawMessage(other))
		require.JSONEq(t, other, text(t, result))
		require.NotNil(t, field(t, result, "value"))
	}
}

// TestCall_LiveOutputIsLogged: a client that wants log messages gets live output as such, all of it
// before the result.
func TestCall_LiveOutputIsLogged(t *testing.T) {
	t.Parallel()
	s, _ := open(t, shared)
	logged := make(chan any, 100)
	c := connect(t, s, &mcp.ClientOptions{LoggingMessageHandler: func(_ context.Context, r *mcp.LoggingMessageRequest) { //nolint:staticcheck // older clients have it
		logged <- r.Params.Data
	}})
	for level, command := range map[string]string{"": "echo unasked", "error": "echo unimportant", "info": "echo one; echo two"} {
		params := &mcp.CallToolParams{Name: "bash", Arguments: map[string]any{"command": command}}
		if level != "" {
			params.Meta = mcp.Meta{mcp.MetaKeyLogLevel: level} //nolint:staticcheck // older clients have it
		}
		_, err := c.CallTool(t.Context(), params)
		require.NoError(t, err)
	}
	for _, want := range []string{"one", "two"} {
		select {
		case said := <-logged:
			require.Equal(t, want, said)
		case <-time.After(time.Minute):
			t.Fatalf("nothing was logged, but should have been: %s", want)
		}
	}
}
