package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// mcpCall is a call of a tool of the test server.
func mcpCall(tool, file string) protocol.MCPCall {
	arguments, _ := json.Marshal(toolservertest.Arguments{File: file})
	return protocol.MCPCall{Server: toolservertest.Program("test"), Tool: tool, Arguments: arguments}
}

// said is the first text of what a tool returned.
func said(t *testing.T, r *protocol.Result) string {
	t.Helper()
	requireOK(t, r)
	v := value[protocol.MCPCallResult](t, r)
	require.NotEmpty(t, v.Content)
	return v.Content[0].Text
}

func TestMCP_AServerIsAProcessOfItsSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	a, b := protocol.NewSessionID(), protocol.NewSessionID()
	list := r.do(a, wire.MCPList{Server: toolservertest.Program("test")})
	requireOK(t, list)
	tools := map[string]wire.MCPTool{}
	for _, tool := range value[wire.MCPListResult](t, list).Tools {
		tools[tool.Name] = tool
	}
	require.True(t, tools["pid"].ReadOnly)
	require.False(t, tools["count"].ReadOnly)
	require.True(t, tools["grow"].Idempotent)
	require.Contains(t, string(tools["count"].Schema), `"file"`)

	process := said(t, r.do(a, mcpCall("pid", "")))
	require.Equal(t, process, said(t, r.do(a, mcpCall("pid", ""))))
	require.NotEqual(t, process, said(t, r.do(b, mcpCall("pid", ""))))
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(a, mcpCall("count", ""))))
	require.Equal(t, "2 calls, 0 overlap", said(t, r.do(a, mcpCall("count", ""))))
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(b, mcpCall("count", ""))))
}

func TestMCP_WhatAToolReturnsIsTyped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	stateless := mcpCall("count", "")
	stateless.Server = toolservertest.Stateless("stateless")
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, stateless)))
	require.Equal(t, "2 calls, 0 overlap", said(t, r.do(session, stateless)))
	v := value[protocol.MCPCallResult](t, r.do(session, mcpCall("parts", "")))
	require.Equal(t, []protocol.MCPContent{
		{Type: "text", Text: "a text"},
		{Type: "image", Data: protocol.Bytes("\x89PNG"), MediaType: "image/png"},
		{Type: "audio", Data: protocol.Bytes{1, 2}, MediaType: "audio/wav"},
		{Type: "resource_link", URI: "file:///a.txt", Name: "a.txt", Text: "A file."},
		{Type: "resource", URI: "test://b", Text: "inside", MediaType: "text/plain"},
	}, v.Content)
	require.JSONEq(t, `{"n":1}`, string(v.Structured))

	failed := r.do(session, mcpCall("fail", ""))
	requireFault(t, failed, protocol.StatusFailed, protocol.CodeToolFailed)
	require.Equal(t, "no such account", failed.Error.Message)
	require.True(t, value[protocol.MCPCallResult](t, failed).IsError)
	requireFault(t, r.do(session, mcpCall("no-such-tool", "")), protocol.StatusFailed, protocol.CodeToolFailed)
	require.Equal(t, "3 calls, 0 overlap", func() string {
		r.do(session, mcpCall("count", ""))
		r.do(session, mcpCall("count", ""))
		return said(t, r.do(session, mcpCall("count", "")))
	}(), "failures end no server")
}

func TestMCP_WhatAServerMayAskFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	require.Equal(t, "file://"+workspaceOf(o.Data, session), said(t, r.do(session, mcpCall("roots", ""))))
	require.Contains(t, said(t, r.do(session, mcpCall("samples", ""))), "sampling")
	asked := r.do(session, mcpCall("asks", ""))
	require.Equal(t, "decline", said(t, asked))
	require.Equal(t, []string{"the server asked for input (Your name?); it was declined, because nobody who follows the call can be asked"},
		value[protocol.MCPCallResult](t, asked).Notes)

	require.False(t, value[protocol.MCPCallResult](t, r.do(session, mcpCall("count", ""))).ToolsChanged)
	require.Equal(t, "grown", said(t, r.do(session, mcpCall("grow", ""))))
	require.Eventually(t, func() bool {
		return value[protocol.MCPCallResult](t, r.do(session, mcpCall("count", ""))).ToolsChanged
	}, patience, time.Millisecond, "the server has told that it has another tool")
	list := value[wire.MCPListResult](t, r.do(session, wire.MCPList{Server: toolservertest.Program("test")}))
	require.True(t, slices.ContainsFunc(list.Tools, func(tool wire.MCPTool) bool { return tool.Name == "grown" }))
	require.False(t, value[protocol.MCPCallResult](t, r.do(session, mcpCall("count", ""))).ToolsChanged)
}

// asking runs a call, and has its questions answered.
func (r *rig) asking(ctx context.Context, call protocol.Call, answer func(approval.Asked, protocol.Question)) *protocol.Result {
	r.t.Helper()
	var group sync.WaitGroup
	defer group.Wait()
	result, err := r.dispatcher.CallWith(ctx, &call, calls.CallOptions{Observe: func(u loop.Update) {
		if u.Question != nil {
			group.Go(func() { answer(approval.Asked{Pool: call.Pool, Session: call.SessionID, Call: call.ID}, *u.Question) })
		}
	}})
	require.NoError(r.t, err)
	return result
}

const formDefaults = `{"age":30,"name":"Ann","score":9.5,"status":"active","sure":true}`

func TestMCP_APersonAnswersWhatAServerAsks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	ask := func(tool string, answers ...protocol.Answer) *protocol.Result {
		return r.asking(t.Context(), newCall(session, mcpCall(tool, "")), func(asked approval.Asked, q protocol.Question) {
			for i, answer := range answers {
				err := approval.Reply(t.Context(), r.NC, r.NC, r.Name, asked, answer)
				if i < len(answers)-1 && !errors.Is(err, approval.ErrRefused) || i == len(answers)-1 && err != nil {
					t.Errorf("answer %d about %s: %v", i, q.Message, err)
				}
			}
		})
	}
	accept := func(content string) protocol.Answer {
		return protocol.Answer{Action: protocol.ActionAccept, Content: json.RawMessage(content)}
	}
	require.Equal(t, "accept "+formDefaults, said(t, ask("form", accept(""))))
	answered := ask("form", accept(`{"age":"old"}`), accept(`[]`), protocol.Answer{Question: "another", Action: protocol.ActionAccept},
		accept(`{"status":"lost"}`), accept(`{"name":"Bob","sure":false}`))
	require.Equal(t, `accept {"age":30,"name":"Bob","score":9.5,"status":"active","sure":false}`, said(t, answered))
	require.Empty(t, value[protocol.MCPCallResult](t, answered).Notes)
	require.Equal(t, "decline null", said(t, ask("form", protocol.Answer{Action: protocol.ActionDecline})))
	require.Equal(t, "cancel", said(t, ask("asks", protocol.Answer{Action: protocol.ActionCancel})))

	call := newCall(session, mcpCall("asks", ""))
	call.RunTimeout = protocol.MillisOf(4 * time.Second)
	late := r.asking(t.Context(), call, func(asked approval.Asked, q protocol.Question) {
		if err := approval.TakeOn(r.NC, r.Name, asked, q.ID); err != nil {
			t.Error(err)
		}
	})
	require.Equal(t, "decline", said(t, late), "in time for the call")
	require.Contains(t, value[protocol.MCPCallResult](t, late).Notes[0], "nobody answered in time")

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := r.asking(ctx, newCall(session, mcpCall("asks", "")), func(asked approval.Asked, q protocol.Question) {
		if err := approval.TakeOn(r.NC, r.Name, asked, q.ID); err != nil {
			t.Error(err)
		}
		cancel()
	})
	require.Equal(t, protocol.StatusCancelled, stopped.Status)
}

// A worker with keys takes the answer to a form only from one who may use the session of the call:
// one without a trusted key, or of another tenant, neither answers nor holds the question open.
func TestMCP_AnAnswerIsOfWhoMayUseTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var public []byte
	signer := func(tenant string) *signing.Signer {
		dir := t.TempDir()
		key, err := signing.Make(dir)
		require.NoError(t, err)
		body, err := os.ReadFile(filepath.Join(dir, signing.PublicFile))
		require.NoError(t, err)
		public = append(public, bytes.Replace(body, []byte("KEY-----\n"), []byte("KEY-----\nTenant: "+tenant+"\n\n"), 1)...)
		return key
	}
	acme, other := signer("acme"), signer("other")
	file := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(file, public, 0o600))
	o := r.options()
	var err error
	o.Keys, err = signing.Open(file)
	require.NoError(t, err)
	r.work(o)
	r.dispatcher, err = calls.New(t.Context(), r.NC, r.Name, &calls.Options{Signer: acme, LookAfter: 100 * time.Millisecond, CancelWait: patience, Logger: r.Logger})
	require.NoError(t, err)
	call := newCall(protocol.NewSessionID(), mcpCall("form", ""))
	call.Tenant = "acme"
	result := r.asking(t.Context(), call, func(asked approval.Asked, _ protocol.Question) {
		for _, wrong := range []*signing.Signer{nil, other} {
			asked.Signer = wrong
			if err := approval.Reply(t.Context(), r.NC, r.NC, r.Name, asked, protocol.Answer{Action: protocol.ActionAccept}); !errors.Is(err, approval.ErrRefused) {
				t.Errorf("an answer of %s: %v", wrong.ID(), err)
			}
		}
		asked.Signer = acme
		if err := approval.Reply(t.Context(), r.NC, r.NC, r.Name, asked,
			protocol.Answer{Action: protocol.ActionAccept, Content: json.RawMessage(`{"name":"Bob"}`)}); err != nil {
			t.Error(err)
		}
	})
	require.Contains(t, said(t, result), `"name":"Bob"`)
	late := newCall(call.SessionID, mcpCall("form", ""))
	late.Tenant = "acme"
	unheard := r.asking(t.Context(), late, func(asked approval.Asked, q protocol.Question) {
		asked.Signer = other
		if err := approval.TakeOn(r.NC, r.Name, asked, q.ID); err != nil {
			t.Error(err)
		}
	})
	require.Contains(t, value[protocol.MCPCallResult](t, unheard).Notes[0], "nobody who follows the call can be asked")
}

// A server does not say for which of its calls it asks.
func TestMCP_NobodyIsAskedWhenTwoCallsRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots = 2
	r.work(o)
	session := protocol.NewSessionID()
	file := filepath.Join(workspaceOf(o.Data, session), "waits")
	beside := func(tool, file string) protocol.Call {
		call := newCall(session, mcpCall(tool, file))
		call.Resources[0].Access = protocol.Shared
		return call
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		call := beside("wait", file)
		if _, err := r.dispatcher.Call(ctx, &call); err != nil {
			t.Error(err)
		}
	}()
	awaitFile(t, file)
	result := r.asking(t.Context(), beside("asks", ""), func(approval.Asked, protocol.Question) { t.Error("somebody was asked") })
	require.Equal(t, "decline", said(t, result))
	require.Contains(t, value[protocol.MCPCallResult](t, result).Notes[0], "2 of its calls run")
	cancel()
	<-ended
}

func TestMCP_AServerThatDiesInACall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	file := filepath.Join(workspaceOf(o.Data, session), "died")
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, mcpCall("count", ""))))

	call := newCall(session, mcpCall("die", file))
	call.Delivery = protocol.AtMostOnce
	result := r.dispatch(t.Context(), call)
	requireFault(t, result, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, result.Error.Message, "it exited with code 7: the end is near")
	require.FileExists(t, file)
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, mcpCall("count", ""))), "a fresh process")

	twice := r.do(session, mcpCall("die", file))
	requireFault(t, twice, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Equal(t, "1 calls, 0 overlap", said(t, r.do(session, mcpCall("count", ""))))
}

func TestMCP_AStoppedCallIsToldAndEndsItsServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	process := said(t, r.do(session, mcpCall("pid", "")))
	file := filepath.Join(workspaceOf(o.Data, session), "waits")
	stopped := func(readOnly bool) {
		t.Helper()
		require.NoError(t, os.RemoveAll(file))
		payload := mcpCall("wait", file)
		payload.ReadOnly = readOnly
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			defer cancel()
			for ctx.Err() == nil {
				if content, err := os.ReadFile(file); err == nil && string(content) == "begun" {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
		requireFault(t, r.dispatch(ctx, newCall(session, payload)), protocol.StatusCancelled, protocol.CodeCancelled)
		require.Eventually(t, func() bool {
			content, err := os.ReadFile(file)
			return err == nil && string(content) == "cancelled"
		}, patience, time.Millisecond, "the server was told")
	}
	stopped(true)
	require.Equal(t, process, said(t, r.do(session, mcpCall("pid", ""))), "a call that only reads leaves its server alone")
	stopped(false)
	require.NotEqual(t, process, said(t, r.do(session, mcpCall("pid", ""))))
}

func TestMCP_ProgressIsSeenLive(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	r.work(o)
	session := protocol.NewSessionID()
	file := filepath.Join(workspaceOf(o.Data, session), "waits")
	call := newCall(session, mcpCall("wait", file))
	seen := make(chan string, 16)
	watching, err := r.NC.Subscribe(wire.OutputSubject(r.Name, session, call.ID), func(m *nats.Msg) {
		if frame, err := wire.Decode[wire.Frame](m.Data); err == nil && frame.Kind == wire.FrameStdout {
			seen <- string(frame.Data)
		}
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, watching.Unsubscribe()) }()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	shown := make(chan string, 1)
	go func() {
		defer cancel()
		select {
		case text := <-seen:
			shown <- text
		case <-ctx.Done():
			shown <- "nothing"
		}
	}()
	r.dispatch(ctx, call)
	require.Equal(t, "[progress 1/3 waiting]\n", <-shown)
}

func TestMCP_VariablesOfTheWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.MCPEnv = []string{"PATH", "TOOLFLEET_NOT_SET"}
	r.work(o)
	ask := func(text string) *protocol.Result {
		payload := mcpCall("env", "GIVEN")
		payload.Server.Env["GIVEN"] = text
		return r.do(protocol.NewSessionID(), payload)
	}
	require.Equal(t, "a "+os.Getenv("PATH")+" b", said(t, ask("a ${PATH} b")))
	require.Equal(t, "other", said(t, ask("${TOOLFLEET_NOT_SET:-other}")))
	refused := ask("${OPENAI_API_KEY}")
	requireFault(t, refused, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, refused.Error.Message, "env GIVEN")
	require.Contains(t, refused.Error.Message, "--mcp-env OPENAI_API_KEY")
	unset := ask("${TOOLFLEET_NOT_SET}")
	requireFault(t, unset, protocol.StatusRejected, codes.InvalidPayload)
	require.Contains(t, unset.Error.Message, "not set in the environment")
}

func TestMCP_WhatCannotBeStarted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.work(r.options())
	session := protocol.NewSessionID()
	start := func(server protocol.MCPServer) *protocol.Result {
		return r.do(session, wire.MCPList{Server: server})
	}
	missing := start(protocol.MCPServer{Name: "missing", Command: "no-such-program"})
	requireFault(t, missing, protocol.StatusFailed, protocol.CodeCommandNotFound)
	broken := start(protocol.MCPServer{Name: "broken", Command: "sh", Args: []string{"-c", "echo no licence >&2; exit 4"}})
	requireFault(t, broken, protocol.StatusFailed, protocol.CodeToolFailed)
	require.Contains(t, broken.Error.Message, "MCP server broken could not be started: it exited with code 4: no licence")
	remote := start(protocol.MCPServer{Name: "remote", URL: "http://127.0.0.1:1/mcp"})
	requireFault(t, remote, protocol.StatusRejected, codes.NetworkOff)
}

// serverTools makes a table of the tools of test servers, as a session has it.
func serverTools(t *testing.T, r *rig, session protocol.SessionID, servers ...mcp.Server) *tools.Table {
	t.Helper()
	made, problems, err := mcptools.Open(t.Context(), r.dispatcher.Call, session, mcptools.Rules{}, servers, nil)
	require.NoError(t, err)
	require.Empty(t, problems)
	table, err := tools.NewTable(made...)
	require.NoError(t, err)
	return table
}

func planned(t *testing.T, table *tools.Table, session protocol.SessionID, tool, arguments string) protocol.Call {
	t.Helper()
	scope := tools.Scope{Session: session, Sandbox: string(session)}
	_, plan, refusal := table.Plan(scope, tool, arguments)
	require.Nil(t, refusal)
	call, refusal := plan.Call(scope, tools.Place{}, "", tool, time.Now())
	require.Nil(t, refusal)
	return call
}

func TestMCP_AServerNeverHasTwoCallsAtOnceAndTwoServersRunSideBySide(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots = 8
	r.work(o)
	session := protocol.NewSessionID()
	apart := new(bool)
	table := serverTools(t, r, session,
		mcp.Server{MCPServer: toolservertest.Program("a"), Workspace: apart},
		mcp.Server{MCPServer: toolservertest.Program("b"), Workspace: apart},
		mcp.Server{MCPServer: toolservertest.Program("c")})
	const calls = 10
	var all []protocol.Call
	for range calls {
		all = append(all, planned(t, table, session, "a__count", "{}"), planned(t, table, session, "b__count", "{}"), planned(t, table, session, "c__count", "{}"))
	}
	for _, result := range r.all(all) {
		require.Contains(t, said(t, result), " 0 overlap")
	}
	require.Equal(t, fmt.Sprintf("%d calls, 0 overlap", calls+1), said(t, r.dispatch(t.Context(), planned(t, table, session, "a__count", "{}"))))

	file := filepath.Join(workspaceOf(o.Data, session), "waits")
	waiting := planned(t, table, session, "a__wait", fmt.Sprintf(`{"file":%q}`, file))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.Call(ctx, &waiting)
		if err != nil {
			t.Error(err)
		}
		ended <- result
	}()
	awaitFile(t, file)
	require.Contains(t, said(t, r.dispatch(t.Context(), planned(t, table, session, "b__count", "{}"))), " 0 overlap", "beside the call of another server")
	cancel()
	require.Equal(t, protocol.StatusCancelled, (<-ended).Status)
}

// TestMCP_AServerOfALaneIsOfOneOwnerAndOneDefinition: on a lane of another resource, calls of
// several sessions share a process and its sandbox only if they have one owner, and the server's
// definition with its secrets is the same. What another tenant, another principal or another
// definition has there is neither seen nor ended.
func TestMCP_AServerOfALaneIsOfOneOwnerAndOneDefinition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots = 8
	_, stop := r.work(o)
	call := func(tool, argument string, change func(*protocol.Call, *protocol.MCPServer)) protocol.Call {
		p := mcpCall(tool, argument)
		c := newCall(protocol.NewSessionID(), nil)
		c.Resources = []protocol.Use{{Key: "account/acme", Access: protocol.Shared}}
		if change != nil {
			change(&c, &p.Server)
		}
		c.Payload = p
		return c
	}
	users := map[string]func(*protocol.Call, *protocol.MCPServer){
		"the operator": nil,
		"a tenant":     func(c *protocol.Call, _ *protocol.MCPServer) { c.Tenant = "acme" },
		"a principal":  func(c *protocol.Call, _ *protocol.MCPServer) { c.Tenant, c.By = "acme", "token:ann" },
		"a variable":   func(_ *protocol.Call, s *protocol.MCPServer) { s.Env["SECRET"] = "of one session" },
		"an argument":  func(_ *protocol.Call, s *protocol.MCPServer) { s.Args = []string{"-more"} },
	}
	processes := map[string]string{}
	for who, change := range users {
		process := said(t, r.dispatch(t.Context(), call("pid", "", change)))
		require.Equal(t, process, said(t, r.dispatch(t.Context(), call("pid", "", change))), "%s: another session", who)
		for other, others := range processes {
			require.NotEqual(t, others, process, "%s and %s", who, other)
		}
		processes[who] = process
		requireFault(t, r.dispatch(t.Context(), call("die", "left", change)), protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
		processes[who] = said(t, r.dispatch(t.Context(), call("pid", "", change)))
	}
	for who, change := range users {
		want := ""
		if who == "a variable" {
			want = "of one session"
		}
		require.Equal(t, want, said(t, r.dispatch(t.Context(), call("env", "SECRET", change))), who)
		listing := call("pid", "", change)
		listing.Payload = script(`printf '"'; ls | tr '\n' ' '; printf '"'`)
		listed := r.dispatch(t.Context(), listing)
		requireOK(t, listed)
		require.Equal(t, `""`, string(value[protocol.ToolRunResult](t, listed).Output), "%s: what servers leave is seen by no other tool", who)
	}
	stop()
	left, err := os.ReadDir(filepath.Join(o.Data, "sandboxes"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestMCP_CallsOfTenantsOverlapInALane: calls that share a resource run at the same time, each
// tenant's in a process of its own, and none ends that of another.
func TestMCP_CallsOfTenantsOverlapInALane(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	o := r.options()
	o.Slots = 8
	r.work(o)
	dir := t.TempDir()
	call := func(tenant protocol.Tenant, tool string) protocol.Call {
		c := newCall(protocol.NewSessionID(), mcpCall(tool, filepath.Join(dir, string(tenant))))
		c.Tenant, c.Resources = tenant, []protocol.Use{{Key: "account/acme", Access: protocol.Shared}}
		return c
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan *protocol.Result, 1)
	waiting := call("acme", "wait")
	go func() {
		result, err := r.dispatcher.Call(ctx, &waiting)
		if err != nil {
			t.Error(err)
		}
		ended <- result
	}()
	awaitFile(t, filepath.Join(dir, "acme"))
	for i := range 8 { // more than sandboxes stay open
		said(t, r.dispatch(t.Context(), call(protocol.Tenant(fmt.Sprintf("tenant-%d", i)), "pid")))
	}
	require.Equal(t, "begun", awaitFile(t, filepath.Join(dir, "acme")), "it still waits")
	cancel()
	require.Equal(t, protocol.StatusCancelled, (<-ended).Status)
	require.Equal(t, "cancelled", awaitFile(t, filepath.Join(dir, "acme")))
}
