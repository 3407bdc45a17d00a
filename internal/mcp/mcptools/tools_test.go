package mcptools_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

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
