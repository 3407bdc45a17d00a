//nolint:staticcheck // older clients have what is deprecated
package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/mcp/login/logintest"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
)

// before is what a server does before a call goes to the fleet.
type before = func(*mcp.Server, *mcp.CallToolRequest) (*mcp.CallToolResult, any, error)

// ask asks a client something by one request, and gives its answer to the call.
func ask(question func(*mcp.CallToolRequest) mcp.InputRequest) before {
	return func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
		if answer := request.Params.InputResponses["question"]; answer != nil {
			return nil, answered(answer), nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"question": question(request)}}, nil, nil
	}
}

// answered is an answer in words.
func answered(answer mcp.InputResponse) string {
	switch a := answer.(type) {
	case *mcp.ElicitResult:
		return fmt.Sprintf("action=%s, content=%v", a.Action, a.Content)
	case *mcp.CreateMessageWithToolsResult:
		for _, content := range a.Content {
			if said, ok := content.(*mcp.TextContent); ok {
				return said.Text
			}
		}
	case *mcp.CreateMessageResult:
		if said, ok := a.Content.(*mcp.TextContent); ok {
			return said.Text
		}
	case *mcp.ListRootsResult:
		return fmt.Sprintf("%d roots", len(a.Roots))
	}
	return fmt.Sprintf("%T", answer)
}

// form asks for a form to be filled in.
func form(message, schema string) func(*mcp.CallToolRequest) mcp.InputRequest {
	return func(*mcp.CallToolRequest) mcp.InputRequest {
		return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(schema)}
	}
}

// argument is a text among the arguments of a call.
func argument(request *mcp.CallToolRequest, name string) string {
	given := map[string]any{}
	_ = json.Unmarshal(request.Params.Arguments, &given) // the table of tools reports what is no JSON
	value, _ := given[name].(string)
	return value
}

// askingTools are those that ask the client before their call goes to the fleet.
func askingTools() map[string]fixtureTool {
	return map[string]fixtureTool{
		"test_sampling": {
			schema: `{"type": "object", "properties": {"prompt": {"type": "string"}, "added": {}}, "required": ["prompt"]}`,
			run:    added("LLM response: %v"),
			before: ask(func(request *mcp.CallToolRequest) mcp.InputRequest {
				return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{
					{Role: "user", Content: &mcp.TextContent{Text: argument(request, "prompt")}},
				}}
			}),
		},
		"test_elicitation": {
			schema: `{"type": "object", "properties": {"message": {"type": "string"}, "added": {}}, "required": ["message"]}`,
			run:    added("User response: %v"),
			before: ask(func(request *mcp.CallToolRequest) mcp.InputRequest {
				return form(argument(request, "message"),
					`{"type": "object", "properties": {"username": {"type": "string"}, "email": {"type": "string"}}, "required": ["username"]}`)(request)
			}),
		},
		"test_elicitation_sep1034_defaults": {
			run: added("Elicitation result: %v"),
			before: ask(form("Please review these defaults.", `{"type": "object", "properties": {
				"name": {"type": "string", "default": "John Doe"}, "age": {"type": "integer", "default": 30},
				"score": {"type": "number", "default": 95.5},
				"status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
				"verified": {"type": "boolean", "default": true}
			}}`)),
		},
		"test_elicitation_sep1330_enums": {
			run: added("Elicitation result: %v"),
			before: ask(form("Please choose.", `{"type": "object", "properties": {
				"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
				"titledSingle": {"type": "string", "oneOf": [
					{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"}
				]},
				"legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
				"untitledMulti": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
				"titledMulti": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [
					{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"}
				]}}
			}}`)),
		},
	}
}

// asPerson makes the binary of these tests an agent in front of which somebody sits, or who logs
// in.
const asPerson = "TOOLFLEET_TEST_PERSON"

// person does what the variable says.
func person(arguments []string) error {
	if os.Getenv(asPerson) == "login" {
		return logIn(arguments)
	}
	return call(arguments)
}

// logIn logs in to a server, and opens the pages that it is told to: the arguments are the
// coordinator, its file of servers, and the server.
func logIn(arguments []string) error {
	ctx := context.Background()
	command := exec.CommandContext(ctx, arguments[0], "login", "--mcp-config", arguments[1], arguments[2])
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return err
	}
	if err := logintest.Browse(ctx, output); err != nil {
		return err
	}
	return command.Wait()
}

// call calls a tool by coordinator mcp, and accepts what it asks as it is: the arguments are the
// coordinator, its file of servers, and the tool.
func call(arguments []string) error {
	ctx := context.Background()
	command := exec.CommandContext(ctx, arguments[0], "mcp", "--mcp-config", arguments[1], "--sandbox", "process", "--allow-net", "all")
	command.Stderr = os.Stderr
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
		},
	})
	session, err := client.Connect(ctx, &mcp.CommandTransport{Command: command}, &mcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	if err != nil {
		return err
	}
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: arguments[2], Arguments: map[string]any{}})
	if err == nil && result.IsError {
		err = fmt.Errorf("%v", result.StructuredContent) //nolint:err113 // it is only shown
	}
	_ = session.Close() // which ends the coordinator
	return err
}

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

// TestOrder_TwoClientsOfOneFile has two clients add lines to one file, and read it: no line is
// lost, and nobody sees half of a change.
func TestOrder_TwoClientsOfOneFile(t *testing.T) {
	t.Parallel()
	workspace, each := t.TempDir(), 25
	if *tables {
		each = 1000
	}
	file := filepath.Join(workspace, "n")
	require.NoError(t, os.WriteFile(file, []byte("end\n"), 0o600))
	url := serve(t, "--workspace", workspace)
	group, ctx := errgroup.WithContext(t.Context())
	for k := range 2 {
		c := connect(t, url)
		group.Go(func() error {
			for i := range each {
				if err := addAndRead(ctx, c, k, i); err != nil {
					return fmt.Errorf("client %d, line %d: %w", k, i, err)
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, 2*each+1, strings.Count(string(content), "\n"))
	if *tables {
		fmt.Printf("\ntwo clients of one file: %d changes, as many reads, none lost, none torn\n", 2*each)
	}
}

var errOrder = errors.New("wrong order")

// addAndRead has client k add its line i, and checks what it reads then.
func addAndRead(ctx context.Context, c *mcp.ClientSession, k, i int) error {
	result, err := c.CallTool(ctx, &mcp.CallToolParams{Name: "edit", Arguments: map[string]any{
		"path": "n", "old": "end\n", "new": fmt.Sprintf("%d:%d\nend\n", k, i),
	}})
	if err != nil {
		return err
	}
	if result.IsError {
		return fmt.Errorf("%w: %v", errOrder, result.StructuredContent)
	}
	read, err := c.ReadResource(ctx, &mcp.ReadResourceParams{URI: "toolfleet://workspace/n"})
	if err != nil {
		return err
	}
	text, whole := strings.CutSuffix(read.Contents[0].Text, "\nend\n")
	if !whole {
		return fmt.Errorf("%w: the end is torn: %q", errOrder, text)
	}
	next := map[string]int{}
	for line := range strings.SplitSeq(text, "\n") {
		client, number, _ := strings.Cut(line, ":")
		if number != fmt.Sprint(next[client]) {
			return fmt.Errorf("%w: line %q, not number %d", errOrder, line, next[client])
		}
		next[client]++
	}
	if next[fmt.Sprint(k)] != i+1 {
		return fmt.Errorf("%w: %d lines of its own", errOrder, next[fmt.Sprint(k)])
	}
	return nil
}
