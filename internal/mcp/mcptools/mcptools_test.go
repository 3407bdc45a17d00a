package mcptools_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/mcp/mcptools"
	"github.com/toolfleet/toolfleet/internal/wire"
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
	_, problems, err := mcptools.Open(t.Context(), func(context.Context, *protocol.Call) (*protocol.Result, error) { return nil, gone }, "a", mcptools.Rules{}, servers("a"), nil)
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
