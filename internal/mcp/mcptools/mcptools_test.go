package mcptools_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fleetOf answers calls that ask for tools: with those of a server, by its name, or with its fault.
// It answers none before all have come.
func fleetOf(t *testing.T, list map[string][]string, faults map[string]*protocol.Error) mcptools.DoFunc {
	t.Helper()
	come, all := make(chan struct{}, len(list)+len(faults)), make(chan struct{})
	go func() {
		defer close(all)
		for range cap(come) {
			<-come
		}
	}()
	return func(_ context.Context, call *protocol.Call) (*protocol.Result, error) {
		come <- struct{}{}
		<-all
		if call.SessionID != "a" || call.Lane() != protocol.SandboxKey("a").Lane() || call.Delivery != protocol.Idempotent {
			return nil, errors.New("the call is not one of the session's sandbox that may run again") //nolint:err113 // of one test
		}
		asked, _ := call.Payload.(wire.MCPList)
		value := wire.MCPListResult{}
		for _, tool := range list[asked.Server.Name] {
			value.Tools = append(value.Tools, wire.MCPTool{Name: tool, Schema: json.RawMessage(`{"type": "object"}`)})
		}
		return &protocol.Result{Value: value, Error: faults[asked.Server.Name]}, nil
	}
}

func servers(names ...string) (list []mcp.Server) {
	for _, name := range names {
		list = append(list, mcp.Server{MCPServer: protocol.MCPServer{Name: name, Command: "p"}})
	}
	return list
}

// All servers are asked at once, each in the sandbox of the session, and what is wrong with one
// takes nothing from the others.
func TestOpen(t *testing.T) {
	t.Parallel()
	fleet := fleetOf(t,
		map[string][]string{"a": {"one", "two words"}, "b": {"one", "taken"}, "a_": {"_one"}},
		map[string]*protocol.Error{"broken": protocol.Errorf(protocol.CodeToolFailed, "no licence")})
	taken := []tools.Tool{{Definition: tools.Definition{Name: "b__taken"}}}
	made, problems, err := mcptools.Open(t.Context(), fleet, "a", mcptools.Rules{}, servers("a", "b", "broken", "a_"), taken)
	require.NoError(t, err)
	names := make([]string, len(made))
	for i := range made {
		names[i] = made[i].Name
	}
	require.Equal(t, []string{"a__one", "a__two_words", "b__one", "a____one"}, names)
	told := make([]string, len(problems))
	for i := range problems {
		told[i] = problems[i].Error()
	}
	require.Equal(t, []string{
		"MCP server b: the name b__taken is also that of a built-in tool, or one of a manifest: rename the server",
		"MCP server broken has no tools now: tool_failed: no licence",
	}, told)
}

// Two servers of which one's tool has the name of the other's: the first has it.
func TestOpen_NamesOfTwoServers(t *testing.T) {
	t.Parallel()
	fleet := fleetOf(t, map[string][]string{"a": {"_b"}, "a_": {"b"}}, nil)
	made, problems, err := mcptools.Open(t.Context(), fleet, "a", mcptools.Rules{}, servers("a", "a_"), nil)
	require.NoError(t, err)
	require.Len(t, made, 1)
	require.Equal(t, "a___b", made[0].Name)
	require.Len(t, problems, 1)
	require.EqualError(t, problems[0], "MCP server a_: the name a___b is also that of a tool of MCP server a: rename the server")
}

// A fleet that cannot be asked is an error, and no server without tools.
func TestOpen_WithoutAFleet(t *testing.T) {
	t.Parallel()
	gone := errors.New("gone") //nolint:err113 // of one test
	_, problems, err := mcptools.Open(t.Context(),
		func(context.Context, *protocol.Call) (*protocol.Result, error) { return nil, gone }, "a",
		mcptools.Rules{}, servers("a"), nil)
	require.ErrorIs(t, err, gone)
	require.Empty(t, problems)
}

// What no rule allows is not started, and what is, at the level of the calls that come.
func TestOpen_RulesBindTheStart(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules policy.Policy
		only  []string
		level string
		asked bool
	}{
		"no rule":          {policy.Policy{}, nil, "paths", true},
		"another server":   {policy.Policy{Tools: policy.Names{Deny: []string{"b__*"}}}, nil, "paths", true},
		"some tools":       {policy.Policy{Tools: policy.Names{Deny: []string{"a__one", "*two"}}}, nil, "paths", true},
		"all tools":        {policy.Policy{Tools: policy.Names{Deny: []string{"a__*"}}}, nil, "", false},
		"everything":       {policy.Policy{Tools: policy.Names{Deny: []string{"*"}}}, nil, "", false},
		"all that it has":  {policy.Policy{Tools: policy.Names{Deny: []string{"a__one"}}}, []string{"one"}, "", false},
		"not all":          {policy.Policy{Tools: policy.Names{Deny: []string{"a__one"}}}, []string{"one", "two"}, "paths", true},
		"other tools only": {policy.Policy{Tools: policy.Names{Allow: []string{"read", "@execute", "b__*"}}}, nil, "", false},
		"one of its tools": {policy.Policy{Tools: policy.Names{Allow: []string{"read", "a__one"}}}, nil, "paths", true},
		"a level":          {policy.Policy{MinLevel: "full"}, nil, "full", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var level string
			asked := false
			do := func(_ context.Context, call *protocol.Call) (*protocol.Result, error) {
				asked, level = true, call.MinLevel
				return &protocol.Result{Value: wire.MCPListResult{}}, nil
			}
			judge, err := policy.New(c.rules)
			require.NoError(t, err)
			all := servers("a")
			all[0].Only = c.only
			_, problems, err := mcptools.Open(t.Context(), do, "s", mcptools.Rules{Policy: judge, MinLevel: "paths"}, all, nil)
			require.NoError(t, err)
			require.Equal(t, c.asked, asked)
			require.Equal(t, c.level, level)
			if !asked {
				require.Len(t, problems, 1)
				require.ErrorContains(t, problems[0], "is not started")
			}
		})
	}
}

// parse reads a file with one server, s.
func parse(t *testing.T, server string) mcp.Server {
	t.Helper()
	servers, faults := mcp.Parse([]byte(`{"mcpServers": {"s": ` + server + `}}`))
	require.Empty(t, faults)
	require.Len(t, servers, 1)
	return servers[0]
}

// plan is what a call of a server's tool x becomes.
func plan(t *testing.T, server mcp.Server, tool wire.MCPTool, arguments string) (tools.Plan, *protocol.Error) {
	t.Helper()
	tool.Name = "x"
	if tool.Schema == nil {
		tool.Schema = json.RawMessage(`{"type": "object"}`)
	}
	made, faults := mcptools.ToolsOf(&server, []wire.MCPTool{tool})
	require.Empty(t, faults)
	table, err := tools.NewTable(made...)
	require.NoError(t, err)
	_, plan, refusal := table.Plan(tools.Scope{Session: "a", Sandbox: "a"}, "s__x", arguments)
	return plan, refusal
}

// What may happen after a lost worker, and what a call keeps others from, is what the file says,
// or else the server's hints.
func TestTools_DeliveryAndResources(t *testing.T) {
	t.Parallel()
	const (
		program = `{"command": "p"}`
		apart   = `{"command": "p", "toolfleet": {"workspace": false}}`
		remote  = `{"url": "https://example.com"}`
		near    = `{"url": "https://example.com", "toolfleet": {"workspace": true}}`
	)
	reads, repeats, both := wire.MCPTool{ReadOnly: true}, wire.MCPTool{Idempotent: true}, wire.MCPTool{ReadOnly: true, Idempotent: true}
	whole := func(access protocol.Access) []protocol.Use { return []protocol.Use{{Key: "sandbox/a", Access: access}} }
	own := func(access protocol.Access) []protocol.Use {
		return []protocol.Use{{Key: "sandbox/a/mcp:s", Access: access}}
	}
	for name, c := range map[string]struct {
		server   string
		tool     wire.MCPTool
		delivery protocol.Delivery
		uses     []protocol.Use
	}{
		"program, no hint":           {program, wire.MCPTool{}, protocol.AtMostOnce, whole(protocol.Exclusive)},
		"program that reads":         {program, reads, protocol.Idempotent, whole(protocol.Shared)},
		"program, repeatable":        {program, repeats, protocol.Rollback, whole(protocol.Exclusive)},
		"program, both":              {program, both, protocol.Idempotent, whole(protocol.Shared)},
		"no workspace, no hint":      {apart, wire.MCPTool{}, protocol.AtMostOnce, own(protocol.Exclusive)},
		"no workspace, reads":        {apart, reads, protocol.Idempotent, own(protocol.Shared)},
		"no workspace, repeatable":   {apart, repeats, protocol.Idempotent, own(protocol.Exclusive)},
		"url, no hint":               {remote, wire.MCPTool{}, protocol.AtMostOnce, own(protocol.Exclusive)},
		"url that reads":             {remote, reads, protocol.Idempotent, own(protocol.Shared)},
		"url with workspace, repeat": {near, repeats, protocol.Rollback, whole(protocol.Exclusive)},
		"delivery of the file": {
			`{"command": "p", "toolfleet": {"tools": {"x": {"delivery": "at_most_once"}}}}`, reads, protocol.AtMostOnce, whole(protocol.Shared),
		},
		"nothing is touched": {
			`{"command": "p", "toolfleet": {"tools": {"x": {"resources": []}}}}`, wire.MCPTool{}, protocol.AtMostOnce, []protocol.Use{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plan, refusal := plan(t, parse(t, c.server), c.tool, `{}`)
			require.Nil(t, refusal)
			require.Equal(t, c.delivery, plan.Delivery)
			require.Equal(t, c.uses, plan.Resources)
		})
	}
}

// What a server says of its tool itself holds where the file says nothing, and is never believed to
// be harmless.
func TestTools_WhatTheServerSays(t *testing.T) {
	t.Parallel()
	tool := wire.MCPTool{
		Schema: json.RawMessage(`{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}`),
		Rule:   json.RawMessage(`{"resources": [{"key": "account/{id}", "access": "shared"}], "delivery": "idempotent", "timeout": "7s"}`),
	}
	made, refusal := plan(t, parse(t, `{"command": "p"}`), tool, `{"id": "7"}`)
	require.Nil(t, refusal)
	require.Equal(t, []protocol.Use{{Key: "account/7", Access: protocol.Shared}}, made.Resources)
	require.Equal(t, protocol.Idempotent, made.Delivery)
	require.Equal(t, 7*time.Second, made.Timeout)
	file := parse(t, `{"command": "p", "toolfleet": {"tools": {"x": {"delivery": "at_most_once", "resources": [{"key": "sandbox/{$sandbox}"}]}}}}`)
	made, refusal = plan(t, file, tool, `{"id": "7"}`)
	require.Nil(t, refusal)
	require.Equal(t, []protocol.Use{{Key: "sandbox/a", Access: protocol.Exclusive}}, made.Resources)
	require.Equal(t, protocol.AtMostOnce, made.Delivery)
	require.Equal(t, 7*time.Second, made.Timeout)
	server := parse(t, `{"command": "p"}`)
	for rule, fault := range map[string]string{
		`{"delivery": "twice"}`:                           `delivery "twice": must be`,
		`{"resources": [{"key": "sandbox/other"}]}`:       "sandbox of its own session only",
		`{"resources": [{"key": "account/{missing}"}]}`:   "missing",
		`{"resources": [{"key": "a/1"}, {"key": "b/1"}]}`: "first two segments",
		`{"timeout": "soon"}`:                             `timeout "soon": must be a time`,
		`{"resourses": []}`:                               `unknown field "resourses"`,
		`[]`:                                              "cannot unmarshal",
	} {
		bad := wire.MCPTool{Name: "x", Schema: tool.Schema, ReadOnly: true, Rule: json.RawMessage(rule)}
		made, faults := mcptools.ToolsOf(&server, []wire.MCPTool{bad})
		require.Empty(t, made, rule)
		require.ErrorContains(t, errors.Join(faults...), fault)
	}
	good := wire.MCPTool{Name: "x", Schema: tool.Schema, ReadOnly: true, Rule: tool.Rule}
	list, faults := mcptools.ToolsOf(&server, []wire.MCPTool{good})
	require.Empty(t, faults)
	require.True(t, list[0].Effect.Hinted)
}

// A key with an argument is that of the file or directory that the call names.
func TestTools_PathOfAnArgument(t *testing.T) {
	t.Parallel()
	server := parse(t, `{"command": "p", "toolfleet": {"tools": {"x": {"resources": [{"key": "sandbox/{$sandbox}/{path...}", "access": "shared"}]}}}}`)
	tool := wire.MCPTool{Schema: json.RawMessage(`{"type": "object", "properties": {"path": {"type": "string"}}}`)}
	for arguments, key := range map[string]protocol.ResourceKey{
		`{"path": "a.txt"}`:          "sandbox/a/a.txt",
		`{"path": "./d//e/../f"}`:    "sandbox/a/d/f",
		`{"path": "."}`:              "sandbox/a",
		`{}`:                         "sandbox/a",
		`{"path": "/workspace/d/f"}`: "sandbox/a/d/f",
	} {
		plan, refusal := plan(t, server, tool, arguments)
		require.Nil(t, refusal, arguments)
		require.Equal(t, []protocol.Use{{Key: key, Access: protocol.Shared}}, plan.Resources, arguments)
	}
	_, refusal := plan(t, server, tool, `{"path": "../b"}`)
	require.Equal(t, codes.PathEscape, refusal.Code)
}

// What cannot be a tool is told, and takes nothing with it.
func TestTools_WhatIsLeftOut(t *testing.T) {
	t.Parallel()
	good := json.RawMessage(`{"type": "object"}`)
	server := parse(t, `{"command": "p", "toolfleet": {"tools": {"gone": {}, "key": {"resources": [{"key": "sandbox/{$sandbox}/{file...}"}]}}}}`)
	made, faults := mcptools.ToolsOf(&server, []wire.MCPTool{
		{Name: "a.b", Schema: good},
		{Name: "a b", Schema: good},
		{Name: "a_b", Schema: good},
		{Name: "kind", Schema: json.RawMessage(`{"type": "thing"}`)},
		{Name: "list", Schema: json.RawMessage(`{"type": "array"}`)},
		{Name: "key", Schema: good},
		{Name: strings.Repeat("long", 20), Schema: good},
		{Name: "none", Schema: nil},
		{Name: "last", Schema: good, Description: "Is the last one."},
	})
	names := make([]string, len(made))
	for i := range made {
		names[i] = made[i].Name
	}
	require.Equal(t, []string{"s__a_b", "s__last"}, names)
	require.Equal(t, "a.b of MCP server s.", made[0].Description)
	require.Equal(t, "Is the last one.", made[1].Description)
	told := make([]string, len(faults))
	for i := range faults {
		told[i] = faults[i].Error()
	}
	text := strings.Join(told, "\n")
	require.Contains(t, text, "MCP server s: tool a b: has the same name s__a_b as a.b: one of them is left out")
	require.Contains(t, text, "MCP server s: tool a_b: has the same name s__a_b as a.b: one of them is left out")
	for _, name := range []string{"kind", "list", "key", strings.Repeat("long", 20), "none"} {
		require.Contains(t, text, "MCP server s: tool "+name+": is left out: ")
	}
	require.Contains(t, text, "MCP server s: tool gone: there are settings for it, but the server has no such tool")
}

// A server's tools are those that it has, or of them only some.
func TestTools_Only(t *testing.T) {
	t.Parallel()
	good := json.RawMessage(`{"type": "object"}`)
	server := parse(t, `{"command": "p", "toolfleet": {"only": ["b", "gone"]}}`)
	made, faults := mcptools.ToolsOf(&server, []wire.MCPTool{{Name: "a"}, {Name: "b", Schema: good}})
	require.Len(t, made, 1)
	require.Equal(t, "s__b", made[0].Name)
	require.Len(t, faults, 1, "what is not offered may be broken")
	require.EqualError(t, faults[0], "MCP server s: tool gone: is named in only, but the server has no such tool")
}

// What is wrong with a URL is told without its secrets.
func TestParse_ErrorsShowNoSecretsOfURLs(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"ftp://ann:s3cret@host/s3cret?token=s3cret", "host/mcp?token=s3cret", "ann:s3cret@host", "host#s3cret"} {
		_, faults := mcp.Parse([]byte(`{"mcpServers": {"s": {"url": "` + url + `"}}}`))
		require.Len(t, faults, 1)
		require.ErrorContains(t, faults[0], "must begin with http:// or https://")
		require.NotContains(t, faults[0].Error(), "s3cret")
	}
}

// A revert names a tool of the server, or another one of the session. Its arguments are filled from
// the text that the server returned, if that has no structured content.
func TestTools_Reverts(t *testing.T) {
	t.Parallel()
	server := parse(t, `{"command": "p", "toolfleet": {"tools": {
		"open.it": {"revert": {"tool": "close.it", "arguments": {"id": "{result.id}", "who": "{who}", "why": "said {result}"}}},
		"run": {"revert": {"tool": "bash"}}
	}}}`)
	good := json.RawMessage(`{"type": "object", "properties": {"who": {"type": "string"}}}`)
	made, faults := mcptools.ToolsOf(&server, []wire.MCPTool{{Name: "open.it", Schema: good}, {Name: "close.it", Schema: good}, {Name: "run", Schema: good}})
	require.Empty(t, faults)
	require.Nil(t, made[1].Revert)
	require.Equal(t, &tools.Revert{Tool: "bash", Arguments: json.RawMessage("{}")}, made[2].Revert)
	table, err := tools.NewTable(made...)
	require.NoError(t, err)
	opened, _, refusal := table.Plan(tools.Scope{Session: "a", Sandbox: "a"}, "s__open_it", `{"who": "me"}`)
	require.Nil(t, refusal)
	for name, value := range map[string]protocol.MCPCallResult{
		"text":       {Content: []protocol.MCPContent{{Type: "text", Text: `{"id": 9007199254740993}`}}},
		"structured": {Content: []protocol.MCPContent{{Type: "text", Text: "done"}}, Structured: json.RawMessage(`{"id": 9007199254740993}`)},
	} {
		tool, arguments, ok := opened.Reverted(&protocol.Result{Status: protocol.StatusOK, Value: value})
		require.True(t, ok, name)
		require.Equal(t, "s__close_it", tool)
		require.JSONEq(t, `{"id": 9007199254740993, "who": "me", "why": "said {\"id\":9007199254740993}"}`, string(arguments))
		require.Contains(t, string(arguments), "9007199254740993", "a number as the server wrote it")
	}
	_, _, ok := opened.Reverted(&protocol.Result{Status: protocol.StatusOK, Value: protocol.MCPCallResult{Content: []protocol.MCPContent{{Type: "text", Text: "done"}}}})
	require.False(t, ok, "there is no id")
	server.Tools["open.it"].Revert.Arguments["id"] = "{nothing}"
	_, faults = mcptools.ToolsOf(&server, []wire.MCPTool{{Name: "open.it", Schema: good}, {Name: "run", Schema: good}})
	require.Len(t, faults, 1)
	require.ErrorContains(t, faults[0], "tool open.it: is left out: ")
	require.ErrorContains(t, faults[0], "revert: arguments: placeholder {nothing}: must be who, result")
}
