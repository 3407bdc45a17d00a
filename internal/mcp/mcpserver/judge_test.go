package mcpserver_test

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
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/access"
	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// tokened serves clients with the tokens of a file, whose lines are given.
func tokened(t *testing.T, s *mcpserver.Server, lines ...string) string {
	t.Helper()
	tokens, err := access.ReadTokens(strings.NewReader(strings.Join(lines, "\n")))
	require.NoError(t, err)
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{Access: access.NewTokens(tokens...)}))
	t.Cleanup(web.Close)
	t.Cleanup(as[*http.Transport](t, http.DefaultTransport).CloseIdleConnections)
	return web.URL + "/mcp"
}

// verifying is a verifier of one answer.
type verifying struct {
	grant access.Grant
	err   error
}

func (v *verifying) Verify(context.Context, string) (access.Grant, error) { return v.grant, v.err }

// A token that cannot be checked is not called wrong, and one that is removed ends the stream that
// it has opened.
func TestHTTP_ATokenCountsWhileItIsKnown(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	live, remove := context.WithCancel(t.Context())
	defer remove()
	v := &verifying{grant: access.Grant{Principal: judge.Principal{Known: judge.ByToken, Name: "ann", Role: judge.RoleRun}, Live: live}}
	web := httptest.NewServer(s.Handler(mcpserver.HTTPOptions{Access: v}))
	t.Cleanup(web.Close)
	at := posting{t: t, version: "2025-11-25", url: web.URL + "/mcp"}.begin()
	stream := at.do(http.MethodGet, "", map[string]string{"Accept": "text/event-stream"})
	require.Equal(t, http.StatusOK, stream.status)
	remove()
	_, err := io.ReadAll(stream.body)
	require.NoError(t, err, "it ends")
	v.err = errors.New("the issuer is away")
	away := at.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil)
	require.Equal(t, http.StatusServiceUnavailable, away.status)
	text, err := io.ReadAll(away.body)
	require.NoError(t, err)
	require.Contains(t, string(text), "the token cannot be checked now: the issuer is away")
	v.err = access.ErrUnknown
	require.Equal(t, http.StatusUnauthorized, at.do(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, nil).status)
	v.err, v.grant.Live = nil, nil // for the end of the session
}

func ruled(t *testing.T, rules policy.Policy) func(*mcpserver.Options) {
	t.Helper()
	judge, err := policy.New(rules)
	require.NoError(t, err)
	return func(o *mcpserver.Options) { o.Policy = judge }
}

// TestHTTP_ASessionIsItsPrincipals: who knows the id of a session of the protocol, and has another
// role or tenant under the same name, can neither use nor end it.
func TestHTTP_ASessionIsItsPrincipals(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	others := map[string]string{"another role": readToken, "another tenant": "0123456789abcdef-acme", "another name": "0123456789abcdef-bob"}
	at := posting{t: t, version: "2025-11-25", url: tokened(t, s,
		"ann use "+useToken, "ann read "+readToken, "ann use "+others["another tenant"]+" acme", "bob use "+others["another name"])}.begin()
	const run = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":"echo ran"}}}`
	for name, token := range others {
		header := map[string]string{"Authorization": "Bearer " + token}
		require.Equal(t, http.StatusForbidden, at.do(http.MethodPost, run, header).status, name)
		require.Equal(t, http.StatusForbidden, at.do(http.MethodGet, "", header).status, name)
		require.Equal(t, http.StatusForbidden, at.do(http.MethodDelete, "", header).status, name)
	}
	_, got := event(t, bufio.NewReader(at.do(http.MethodPost, run, nil).body), false)
	require.Equal(t, "ran\n", got.Result.Content[0].Text, "the session goes on")
}

// TestHTTP_TenantsOfOneNameShareNothing: what they call by one key are two sandboxes, and nobody
// makes up the other's by a key.
func TestHTTP_TenantsOfOneNameShareNothing(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	const acme, other = "0123456789abcdef-acme", "0123456789abcdef-other"
	url := tokened(t, s, "ann use "+useToken, "ann use "+acme+" acme", "ann use "+other+" other")
	said := func(token, key, command string) string {
		t.Helper()
		got := asking{t: t, url: url + "/" + key, token: token, unaware: true}.call(command)
		require.Zero(t, got.Error.Code)
		return got.Result.Content[0].Text
	}
	said(acme, "key", "echo acme >f")
	require.Contains(t, said(other, "key", "ls"), "no output")
	require.Contains(t, said(useToken, "key", "ls"), "no output")
	for _, key := range []string{"acme%00key", "%22acme%22,%22ann%22,%22key%22", "ann%00acme%00key"} {
		require.Contains(t, said(useToken, key, "ls"), "no output")
	}
	require.Equal(t, "f\n", said(acme, "key", "ls"))
}

// recorder notes the calls that are dispatched.
type recorder struct {
	mcpserver.Dispatcher

	mu    sync.Mutex
	calls []protocol.Call
}

func (r *recorder) CallWith(ctx context.Context, call *protocol.Call, o calls.CallOptions) (*protocol.Result, error) {
	r.mu.Lock()
	r.calls = append(r.calls, *call)
	r.mu.Unlock()
	return r.Dispatcher.CallWith(ctx, call, o)
}

// TestResources_AreOfTheTenant: as calls of tools are.
func TestResources_AreOfTheTenant(t *testing.T) {
	t.Parallel()
	recorded := &recorder{}
	s, _ := open(t, func(o *mcpserver.Options) { o.Dispatcher, recorded.Dispatcher = recorded, o.Dispatcher })
	c := client(t, overHTTP(tokened(t, s, "ann use "+useToken+" acme"), useToken), nil)
	result := bash(t, c, "echo text >f; seq 1 100000")
	for _, uri := range []string{"toolfleet://workspace/f", as[*mcp.ResourceLink](t, result.Content[1]).URI} {
		_, err := c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
		require.NoError(t, err, uri)
	}
	require.Len(t, recorded.calls, 3)
	for _, call := range recorded.calls {
		require.EqualValues(t, "acme", call.Tenant)
	}
}

// TestResources_ObeyThePolicy: a resource is read by the rules of the tools that read it.
func TestResources_ObeyThePolicy(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules        policy.Policy
		file, result string // the rule that denies it, "" for none
	}{
		"no rule":             {rules: policy.Policy{Commands: policy.Names{Deny: []string{"rm"}}}},
		"the tool":            {rules: policy.Policy{Tools: policy.Names{Deny: []string{"read"}}}, file: "tools.deny", result: "tools.deny"},
		"the class":           {rules: policy.Policy{Tools: policy.Names{Deny: []string{"@read"}}}, file: "tools.deny", result: "tools.deny"},
		"others are allowed":  {rules: policy.Policy{Tools: policy.Names{Allow: []string{"bash"}}}, file: "tools.allow", result: "tools.allow"},
		"a path":              {rules: policy.Policy{Paths: policy.Paths{Read: []string{"src"}, Except: []string{"bash"}}}, file: "paths.read"},
		"nobody is asked":     {rules: policy.Policy{Approval: policy.Approval{Tools: []string{"read"}}}, file: "approval", result: "approval"},
		"a bound":             {rules: policy.Policy{MaxCallsOf: map[string]int{"read": 0}}, file: "max_calls_of", result: "max_calls_of"},
		"the bound of all":    {rules: policy.Policy{MaxCalls: 1}, file: "max_calls", result: "max_calls"},
		"a level":             {rules: policy.Policy{MinLevel: "none"}},
		"another tool's name": {rules: policy.Policy{Tools: policy.Names{Deny: []string{"write", "json_read"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := open(t, shared, ruled(t, c.rules))
			client := connect(t, s, nil)
			result := bash(t, client, "echo text >f; seq 1 100000")
			require.Equal(t, "ok", field(t, result, "status"))
			for uri, denied := range map[string]string{"toolfleet://workspace/f": c.file, as[*mcp.ResourceLink](t, result.Content[1]).URI: c.result} {
				_, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri})
				if denied == "" {
					require.NoError(t, err, uri)
					continue
				}
				var wire *jsonrpc.Error
				require.ErrorAs(t, err, &wire, uri)
				require.Contains(t, wire.Message, "policy_denied", uri)
			}
		})
	}
}

// TestHooks_OfCallsAndResources: hooks of tools decide about resources, too.
func TestHooks_OfCallsAndResources(t *testing.T) {
	t.Parallel()
	reads := func(tool string) bool { return tool == "read" }
	bashes := func(tool string) bool { return tool == "bash" }
	private := func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
		answer := loop.HookAnswer{Decision: policy.Denied, Reason: "private"}
		if r.Result != nil && !strings.Contains(r.Result.Content, "secret") {
			answer = loop.HookAnswer{}
		}
		return answer, nil
	}
	s, _ := open(t, shared, func(o *mcpserver.Options) {
		o.Hooks = []loop.Hook{{
			Event: loop.HookAfter, Run: private,
		}, {Event: loop.HookBefore, Matches: bashes, Run: func(_ context.Context, r loop.HookRequest) (loop.HookAnswer, error) {
			return loop.HookAnswer{Input: bytes.ReplaceAll(r.Input, []byte("original"), []byte("changed"))}, nil
		}}}
	})
	client := connect(t, s, nil)
	require.Contains(t, text(t, bash(t, client, "echo original; echo secret >f; echo open >g")), "changed")
	withheld := bash(t, client, "cat f")
	require.Equal(t, "[A hook withheld the result: private]", text(t, withheld))
	require.NotContains(t, fmt.Sprint(withheld.StructuredContent), "secret")
	_, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
	require.ErrorContains(t, err, "A hook withheld the result")
	_, err = client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/g"})
	require.NoError(t, err)

	s, _ = open(t, shared, func(o *mcpserver.Options) {
		o.Hooks = []loop.Hook{{Event: loop.HookBefore, Matches: reads, Run: private}}
	})
	client = connect(t, s, nil)
	bash(t, client, "echo text >f")
	_, err = client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
	require.ErrorContains(t, err, "A hook refused the call: private")
}

// TestMaxCalls_HoldsThroughAllMethods: tools and resources have one bound, also for another server
// of the session, and after a restart.
func TestMaxCalls_HoldsThroughAllMethods(t *testing.T) {
	t.Parallel()
	var o mcpserver.Options
	s, _ := open(t, shared, ruled(t, policy.Policy{MaxCalls: 3}), func(of *mcpserver.Options) { o = *of })
	one := connect(t, s, nil)
	require.Equal(t, "ok", field(t, bash(t, one, "echo text >f"), "status"))
	_, err := one.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
	require.NoError(t, err)
	next := mcpserver.New(o)
	t.Cleanup(next.Close)
	two := connect(t, next, nil)
	require.Equal(t, "ok", field(t, bash(t, two, "cat f"), "status"))
	for _, c := range []*mcp.ClientSession{one, two} {
		refused := bash(t, c, "cat f")
		require.Equal(t, "policy_denied", as[map[string]any](t, field(t, refused, "error"))["code"])
		require.Contains(t, text(t, refused), "used up its 3 tool calls")
		_, err = c.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "toolfleet://workspace/f"})
		require.ErrorContains(t, err, "used up its 3 tool calls")
	}
}

// TestApproval_IsUsedOnce: the answer to a question approves one call, of one client, in time.
func TestApproval_IsUsedOnce(t *testing.T) {
	t.Parallel()
	s, workspace := open(t, shared, ruled(t, policy.Policy{Approval: policy.Approval{Tools: []string{"bash"}}}), func(o *mcpserver.Options) { o.ClientApproves = true })
	at := tokened(t, s, "ann use "+useToken, "bob use "+readToken)
	var state string
	request := func(token, command, answer string) string {
		t.Helper()
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"bash","arguments":{"command":` + strconv.Quote(command) + `}` + answer + `,"_meta":{
			"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},
			"io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}}}`
		p := posting{t: t, url: at, version: "2026-07-28"}.do(http.MethodPost, body,
			map[string]string{"Mcp-Method": "tools/call", "Mcp-Name": "bash", "Authorization": "Bearer " + token})
		said, err := io.ReadAll(p.body)
		require.NoError(t, err)
		return string(said)
	}
	asked := request(useToken, "echo x >>f", "")
	_, after, found := strings.Cut(asked, `"requestState":"`)
	require.True(t, found, asked)
	state, _, _ = strings.Cut(after, `"`)
	yes := `,"requestState":"` + state + `","inputResponses":{"approval":{"action":"accept","content":{}}}`

	require.Contains(t, request(readToken, "echo x >>f", yes), "requestState", "of another client")
	require.Contains(t, request(useToken, "echo y >>f", yes), "requestState", "of another call")
	require.Contains(t, request(useToken, "echo x >>f", yes), `"status":"ok"`)
	for range 3 {
		require.Contains(t, request(useToken, "echo x >>f", yes), "requestState", "it was used")
	}
	written, err := os.ReadFile(filepath.Join(workspace, "shared", "f"))
	require.NoError(t, err)
	require.Equal(t, "x\n", string(written))
}

// TestApproval_SaysWhoDecided: the journal has who answered, by which way, and when.
func TestApproval_SaysWhoDecided(t *testing.T) {
	t.Parallel()
	var journal loop.Journal
	s, _ := open(t, shared, ruled(t, policy.Policy{Approval: policy.Approval{Tools: []string{"bash"}}, Tools: policy.Names{Deny: []string{"tree"}}}),
		func(o *mcpserver.Options) { journal, o.ClientApproves = o.Journal, true })
	c := client(t, overHTTP(tokened(t, s, "ann use "+useToken), useToken), &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"note": "once"}}, nil
		},
	})
	require.Equal(t, "ok", field(t, bash(t, c, "echo done"), "status"))
	require.Equal(t, "policy_denied", as[map[string]any](t, field(t, call(t, c, "tree", json.RawMessage(`{}`)), "error"))["code"])
	history, err := journal.Load(t.Context(), "shared")
	require.NoError(t, err)
	var decided []loop.Event
	for _, e := range history.Events {
		if e.Type == loop.EventCallJudged {
			require.NotZero(t, e.Time)
			require.NotEmpty(t, e.CallID)
			decided = append(decided, loop.Event{Status: e.Status, NoteFields: e.NoteFields})
		}
		if e.Type == loop.EventTurnStarted {
			require.Equal(t, "ann", e.By)
			require.Equal(t, "mcp", e.Interface)
		}
	}
	require.Equal(t, []loop.Event{
		{Status: "approved", NoteFields: loop.NoteFields{Rule: "approval.tools", By: "ann", Via: "mcp", Note: "once", Interface: "mcp"}},
		{Status: "denied", NoteFields: loop.NoteFields{Rule: "tools.deny", Interface: "mcp"}},
	}, decided)
}

// TestInterfaces_TokensReachTheirOwn tries each act of a client with the wrong token: of another
// tenant, of another name, one that may only read, one that has expired, and none. What a client
// makes belongs to the principal of its token.
func TestInterfaces_TokensReachTheirOwn(t *testing.T) {
	t.Parallel()
	ended, journal := make(chan protocol.SessionID, 10), loop.Journal(nil)
	recorded := &recorder{}
	s, workspace := open(t, tasksAtOnce, func(o *mcpserver.Options) {
		o.Dispatcher, recorded.Dispatcher, journal = recorded, o.Dispatcher, o.Journal
		o.Ended = func(ctx context.Context, id protocol.SessionID) error {
			mine := judge.Object{Kind: judge.Session, ID: string(id), Owner: judge.Owner{Tenant: "acme", By: "token:ann"}}
			assert.NoError(t, judge.Judge(ctx, judge.Remove, mine))
			ended <- id
			return nil
		}
	})
	const other, bob, expired = "0123456789abcdef-other", "0123456789abcdef-bob", "0123456789abcdef-old"
	url := tokened(t, s, "ann run "+useToken+" acme", "ann operate "+other+" other", "bob operate "+bob+" acme", "ann read "+readToken+" acme",
		"old operate "+expired+" acme expires=2020-01-01T00:00:00Z")
	ann := asking{t: t, url: url + "/k", token: useToken}
	made := ann.call("echo secret >f; sleep 1000").Result.TaskID
	require.NotEmpty(t, made)
	require.Eventually(t, func() bool {
		files, err := filepath.Glob(filepath.Join(workspace, "*", "f"))
		return err == nil && len(files) == 1
	}, time.Minute, time.Millisecond)
	recorded.mu.Lock()
	call := recorded.calls[0]
	recorded.mu.Unlock()
	require.EqualValues(t, "acme", call.Tenant)
	for _, token := range []string{other, bob, readToken} {
		wrong := asking{t: t, url: ann.url, token: token}
		require.Equal(t, -32602, wrong.about("tasks/get", made).Error.Code, token)
		require.Equal(t, -32602, wrong.about("tasks/cancel", made).Error.Code, token)
		if token != readToken { // which shares the sandbox of its name
			require.NotZero(t, wrong.request("resources/read", "toolfleet://workspace/f", `"uri": "toolfleet://workspace/f"`).Error.Code, token)
		}
	}
	require.NotZero(t, asking{t: t, url: ann.url, token: readToken}.call("echo x >g").Error.Code, "a reader calls nothing")
	for _, token := range []string{expired, ""} {
		for _, method := range []string{http.MethodPost, http.MethodDelete} {
			got := posting{t: t, url: url, version: "2025-11-25"}.do(method, `{}`, map[string]string{"Authorization": "Bearer " + token})
			require.Equal(t, http.StatusUnauthorized, got.status, token)
		}
	}
	mine := posting{t: t, version: "2025-11-25", url: url}.begin()
	for _, token := range []string{other, bob, readToken} {
		require.Equal(t, http.StatusForbidden, mine.do(http.MethodDelete, "", map[string]string{"Authorization": "Bearer " + token}).status)
	}
	require.Empty(t, ended)
	reader := map[string]string{"Authorization": "Bearer " + readToken}
	read := posting{t: t, version: "2025-11-25", url: url}
	begun := read.do(http.MethodPost, fmt.Sprintf(hello, read.version), reader)
	read.session = begun.header.Get("Mcp-Session-Id")
	_, _ = event(t, bufio.NewReader(begun.body), false)
	require.Equal(t, http.StatusNoContent, read.do(http.MethodDelete, "", reader).status)
	require.EqualValues(t, read.session, <-ended, "a reader ends its own")
	require.Equal(t, "working", ann.about("tasks/get", made).Result.Status)
	require.Zero(t, ann.about("tasks/cancel", made).Error.Code)
	ann.url = url + "/other"
	require.NotEmpty(t, ann.call("true").Result.TaskID)
	recorded.mu.Lock()
	session := recorded.calls[len(recorded.calls)-1].SessionID
	recorded.mu.Unlock()
	require.Eventually(t, func() bool { // it is journaled when the call has ended
		history, err := journal.Load(t.Context(), session)
		return err == nil && history.Tenant() == "acme" && history.By() == "token:ann"
	}, time.Minute, time.Millisecond)
}
