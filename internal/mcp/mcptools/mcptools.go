// Package mcptools asks MCP servers for their tools: each in the sandbox of the session where it
// will live, so that it is warm when the first call comes.
package mcptools

import (
	"cmp"
	"context"
	"fmt"
	"sync"

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
func Open(ctx context.Context, do DoFunc, session protocol.SessionID, rules Rules, servers []mcp.Server, taken []tools.Tool) (made []tools.Tool, problems []error, err error) {
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
