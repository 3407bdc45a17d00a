// Package mcptools asks MCP servers for their tools: each in the sandbox of the session where it
// will live, so that it is warm when the first call comes.
package mcptools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

// DoFunc runs a call of a fleet and returns its result.
type DoFunc func(ctx context.Context, call *protocol.Call) (*protocol.Result, error)

// Rules bind the servers as they bind the calls of their tools.
type Rules struct {
	// Policy decides which servers start, if it is a [policy.Judge]; others are asked about calls
	// only.
	Policy loop.Policy
	// MinLevel is the minimum level of a sandbox if no rule names one.
	MinLevel string
	// Pool is that of servers that name none; "" means [protocol.DefaultPool].
	Pool protocol.Pool
}

// level is the minimum level of the sandbox where a server starts; or why it may not start.
func (r Rules) level(s *mcp.Server) (string, *protocol.Error) {
	level := s.MinLevel
	if judge, is := r.Policy.(*policy.Judge); is && judge != nil {
		var names []string
		for _, name := range s.Only {
			names = append(names, nameOf(s, name))
		}
		verdict := judge.Server(s.Prefix(), names)
		if verdict.Decision == policy.Denied {
			return "", protocol.Errorf(protocol.CodePolicyDenied, "%s", verdict.Reason)
		}
		level = wire.HigherLevel(level, verdict.MinLevel)
	}
	return cmp.Or(level, r.MinLevel), nil
}

// Open asks all servers at once that the rules allow, and returns their tools, in the order of the
// servers. What is wrong with one, and with names that are taken, is told and takes nothing with
// it. The error is that of a fleet which cannot be asked.
func Open(
	ctx context.Context, do DoFunc, session protocol.SessionID, rules Rules, servers []mcp.Server, taken []tools.Tool,
) (made []tools.Tool, problems []error, err error) {
	type answer struct {
		result *protocol.Result
		err    error
	}
	answers := make([]answer, len(servers))
	var group sync.WaitGroup
	for i := range servers {
		level, denied := rules.level(&servers[i])
		if denied != nil {
			answers[i].result = &protocol.Result{Error: denied}
			continue
		}
		group.Go(func() {
			call := listCall(&servers[i], session)
			call.MinLevel, call.Pool = level, cmp.Or(servers[i].Pool, rules.Pool, protocol.DefaultPool)
			answers[i].result, answers[i].err = do(ctx, &call)
		})
	}
	group.Wait()
	owners := map[string]string{}
	for i := range taken {
		owners[taken[i].Name] = "a built-in tool, or one of a manifest"
	}
	for i := range servers {
		if answers[i].err != nil {
			return nil, nil, answers[i].err
		}
		list, _ := answers[i].result.Value.(wire.MCPListResult)
		if failure := answers[i].result.Error; failure != nil {
			problems = append(problems, fmt.Errorf("MCP server %s has no tools now: %w", servers[i].Name, failure))
			continue
		}
		own, errs := ToolsOf(&servers[i], list.Tools)
		problems = append(problems, errs...)
		for _, tool := range own {
			if owner := owners[tool.Name]; owner != "" {
				problems = append(problems, fmt.Errorf("MCP server %s: the name %s is also that of %s: rename the server", servers[i].Name, tool.Name, owner))
				continue
			}
			owners[tool.Name] = "a tool of MCP server " + servers[i].Name
			made = append(made, tool)
		}
	}
	return made, problems, nil
}

const (
	// sandboxKey is the session's sandbox, in a template of a resource.
	sandboxKey = "sandbox/{$sandbox}"
	// listTimeout bounds the call that asks a server, which may have to install itself.
	listTimeout = 3 * time.Minute
)

// badRunes are characters that names of tools cannot have.
var badRunes = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// Prefixes are what the names of the servers' tools begin with.
func Prefixes(servers []mcp.Server) []string {
	list := make([]string, len(servers))
	for i := range servers {
		list[i] = servers[i].Prefix()
	}
	return list
}

// listCall is the call that asks the server for its tools, in the sandbox of a session.
func listCall(s *mcp.Server, session protocol.SessionID) protocol.Call {
	key := protocol.SandboxKey(string(session)) + protocol.ResourceKey("/"+ownKey(s))
	return protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: s.Prefix(),
		Resources: []protocol.Use{{Key: key, Access: protocol.Exclusive}}, Delivery: protocol.Idempotent, MinLevel: s.MinLevel,
		IssuedAt: time.Now().UTC(), RunTimeout: protocol.MillisOf(listTimeout), Payload: wire.MCPList{Server: s.MCPServer},
	}
}

// ownKey is the part of the server's own resource behind the sandbox.
func ownKey(s *mcp.Server) string { return "mcp:" + s.Name }

// ToolsOf makes tools of the server's offered tools. What cannot be a tool is left out and
// reported.
func ToolsOf(s *mcp.Server, list []wire.MCPTool) (made []tools.Tool, errs []error) {
	failure := func(name string, err error) {
		errs = append(errs, fmt.Errorf("MCP server %s: tool %s: %w", s.Name, name, err))
	}
	origin := map[string]string{}
	for i := range list {
		if s.Only != nil && !slices.Contains(s.Only, list[i].Name) {
			continue
		}
		tool, err := makeTool(s, &list[i], list)
		if err != nil {
			failure(list[i].Name, fmt.Errorf("is left out: %w", err))
			continue
		}
		if other, taken := origin[tool.Name]; taken {
			failure(list[i].Name, fmt.Errorf("has the same name %s as %s: one of them is left out", tool.Name, other))
			continue
		}
		if _, err := tools.NewTable(tool); err != nil {
			failure(list[i].Name, fmt.Errorf("is left out: %w", err))
			continue
		}
		origin[tool.Name] = list[i].Name
		made = append(made, tool)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tools)) {
		if !has(list, name) {
			failure(name, fmt.Errorf("there are settings for it, but the server has no such tool"))
		}
	}
	for _, name := range s.Only {
		if !has(list, name) {
			failure(name, fmt.Errorf("is named in only, but the server has no such tool"))
		}
	}
	return made, errs
}

func has(list []wire.MCPTool, name string) bool {
	return slices.ContainsFunc(list, func(t wire.MCPTool) bool { return t.Name == name })
}

// makeTool is a tool of the server.
func makeTool(s *mcp.Server, t *wire.MCPTool, list []wire.MCPTool) (tools.Tool, error) {
	rule, err := s.RuleOf(t.Name, t.Rule)
	if err != nil {
		return tools.Tool{}, err
	}
	timeout, _ := time.ParseDuration(cmp.Or(rule.Timeout, s.Timeout)) // it was checked
	remote := tools.Remote{
		Resources: rule.Resources, Delivery: cmp.Or(rule.Delivery, delivery(s, t)), Timeout: timeout, Pool: s.Pool, MinLevel: s.MinLevel,
	}
	if remote.Resources == nil {
		remote.Resources = []tools.Resource{resource(s, t)}
	}
	tool := remote.MCPTool(tools.Definition{
		Name:        nameOf(s, t.Name),
		Description: cmp.Or(t.Description, fmt.Sprintf("%s of MCP server %s.", t.Name, s.Name)), Schema: t.Schema,
	}, s.MCPServer, t.Name, t.ReadOnly)
	tool.Title, tool.Structured = t.Title, t.Output
	tool.Effect.Idempotent = tool.Effect.Idempotent || t.Idempotent
	tool.Effect.Additive, tool.Effect.Open = t.Additive, !t.Closed
	tool.Revert = revert(s, rule.Revert, list)
	tool.Effect.Hinted = s.Tools[t.Name].Resources == nil // what the server says is a claim
	return tool, nil
}

// nameOf is the name of a server's tool in sessions.
func nameOf(s *mcp.Server, tool string) string {
	return s.Prefix() + badRunes.ReplaceAllString(tool, "_")
}

// revert is what undoes the effect of a call; nil if nothing does.
func revert(s *mcp.Server, r *mcp.Revert, list []wire.MCPTool) *tools.Revert {
	if r == nil {
		return nil
	}
	name := r.Tool
	if has(list, name) {
		name = nameOf(s, name)
	}
	arguments := json.RawMessage("{}")
	if r.Arguments != nil {
		arguments, _ = json.Marshal(r.Arguments) // it was checked
	}
	return &tools.Revert{Tool: name, Arguments: arguments}
}

// touchesWorkspace reports whether the tools touch the workspace.
func touchesWorkspace(s *mcp.Server) bool {
	if s.Workspace != nil {
		return *s.Workspace
	}
	return s.URL == ""
}

// resource returns the resource of a tool's calls: the workspace, as of commands, or else only the
// server, so that the call runs concurrently with everything but another call of that server.
func resource(s *mcp.Server, t *wire.MCPTool) tools.Resource {
	r := tools.Resource{Key: sandboxKey, Access: protocol.Exclusive}
	if !touchesWorkspace(s) {
		r.Key += "/" + ownKey(s)
	}
	if t.ReadOnly {
		r.Access = protocol.Shared
	}
	return r
}

// delivery is what may happen after a lost worker.
func delivery(s *mcp.Server, t *wire.MCPTool) protocol.Delivery {
	switch {
	case t.ReadOnly, t.Idempotent && !touchesWorkspace(s):
		return protocol.Idempotent
	case t.Idempotent:
		return protocol.Rollback
	default:
		return protocol.AtMostOnce
	}
}
