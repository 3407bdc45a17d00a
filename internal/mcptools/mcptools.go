// Package mcptools asks MCP servers for their tools: each in the sandbox of the session where it
// will live, so that it is warm when the first call comes.
package mcptools

import (
	"context"
	"fmt"
	"sync"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// DoFunc runs a call of a fleet and returns its result.
type DoFunc func(ctx context.Context, call *protocol.Call) (*protocol.Result, error)

// Open asks all servers at once and returns their tools, in the order of the servers. What is wrong
// with one, and with names that are taken, is told and takes nothing with it. The error is that of
// a fleet which cannot be asked.
func Open(ctx context.Context, do DoFunc, session protocol.SessionID, servers []mcp.Server, taken []tools.Tool) (made []tools.Tool, problems []error, err error) {
	type answer struct {
		result *protocol.Result
		err    error
	}
	answers := make([]answer, len(servers))
	var group sync.WaitGroup
	for i := range servers {
		group.Go(func() {
			call := listCall(&servers[i], session)
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
				problems = append(problems, fmt.Errorf("MCP server %s: the name %s is that of %s: rename the server", servers[i].Name, tool.Name, owner))
				continue
			}
			owners[tool.Name] = "a tool of MCP server " + servers[i].Name
			made = append(made, tool)
		}
	}
	return made, problems, nil
}
