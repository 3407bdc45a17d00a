package interop

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
)

// taskTools are what the suite of 2026-07-28 calls as tasks; all but greet go on as such at once.
func taskTools() map[string]fixtureTool {
	return map[string]fixtureTool{
		"greet": {
			schema: `{"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}`,
			run: func(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
				var given struct{ Name string }
				if err := json.Unmarshal(arguments, &given); err != nil {
					return nil, err
				}
				return says("Hello, "+given.Name+"!")(ctx, h, arguments)
			},
		},
		"slow_compute": {
			schema: `{"type": "object", "properties": {"seconds": {"type": "number"}, "label": {"type": "string"}}}`,
			run: func(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
				var given struct{ Seconds float64 }
				if err := json.Unmarshal(arguments, &given); err != nil {
					return nil, err
				}
				if !pause.For(ctx, time.Duration(given.Seconds*float64(time.Second))) {
					return nil, ctx.Err()
				}
				return says("computed")(ctx, h, arguments)
			},
		},
		"failing_job": {
			run: func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
				return nil, errIntended
			},
			before: func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
				if can := request.ClientCapabilities(); can == nil || can.Extensions["io.modelcontextprotocol/tasks"] == nil {
					return nil, nil, lacks(`{"extensions": {"io.modelcontextprotocol/tasks": {}}}`)
				}
				return nil, nil, nil
			},
		},
		"protocol_error_job": {run: func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			panic(errIntended)
		}},
	}
}

// taskAfter is that of the fixture's tools.
func taskAfter(tool string) time.Duration {
	if _, is := taskTools()[tool]; is && tool != "greet" || tool == "test_tool_with_task" {
		return 0
	}
	return -1
}

// failures are the scenarios that are expected to fail, and why.
var failures = map[string]string{
	"tasks-mrtr-input": "a call asks its client before it is sent, by the request that makes it, and so before it is a task",
}

// TestConformance_2026_07_28 runs every scenario of the official suite for the protocol without
// sessions, with those of extensions and those that the suite itself does not count yet.
func TestConformance_2026_07_28(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("the suite is an alpha version that takes half a minute: make interop runs it")
	}
	// Its exit code is about what it counts, which is less.
	output, _ := node(t, nextSuite, "server", "--url", startFixture(t), "--requirements", "2026-07-28")
	passed, failed := scenarios(t, "conformance 0.2.0-alpha.12, server", output)
	require.Len(t, slices.Concat(passed, failed), 50, output)
	reasons := map[string]string{}
	for _, name := range failed {
		reasons[name] = failures[name]
	}
	require.Equal(t, failures, reasons, output)
}
