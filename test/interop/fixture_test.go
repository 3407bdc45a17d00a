package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/mcpserver"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// fixtureKind is the kind of payload of every tool of the fixture.
const fixtureKind = "fixture"

const described = "Is called by a conformance suite."

// fixtureTool is a tool that a suite calls by its name.
type fixtureTool struct {
	schema string // of its arguments; "" is none
	// run is what a worker does. nil answers with its name.
	run kinds.Handler
	// before is what the server does before the call goes to the fleet: a result ends it, and added
	// goes to run as the argument "added". nil does nothing.
	before func(server *mcp.Server, request *mcp.CallToolRequest) (result *mcp.CallToolResult, added any, err error)
}

// startFixture serves the fixture over HTTP until the test ends.
func startFixture(t *testing.T) (url string) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	servers := natsiotest.New(t, natsio.Topology{})
	fl := &fleet.Fleet{Name: servers.Name, NC: servers.Connect(), Logger: logger}
	require.NoError(t, fl.Open(t.Context(), true))
	t.Cleanup(fl.Close)
	driver := process.New(nil)
	set, change := fixtureTools(), func() {}
	set["test_trigger_tool_change"] = fixtureTool{before: func(*mcp.Server, *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
		change()
		return nil, nil, nil
	}}
	_, err := fl.StartWorker(t.Context(), worker.Options{
		Options: lane.Options{Slots: 16}, Data: t.TempDir(), Alone: true,
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}, Env: map[string]string{"PATH": os.Getenv("PATH")}},
		Capabilities: kinds.Capabilities{Handlers: kinds.Handlers{Calls: map[protocol.Kind]kinds.Handler{
			fixtureKind: func(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
				if run := set[h.Run.Call.Tool].run; run != nil {
					return run(ctx, h, arguments)
				}
				return says(h.Run.Call.Tool)(ctx, h, arguments)
			},
		}}},
	})
	require.NoError(t, err)
	table, more := fixtureTable(t, set), fixtureTable(t, set, "transient")
	asks, err := policy.New(policy.Policy{Approval: policy.Approval{Tools: []string{"test_input_required_result_tampered_state"}}})
	require.NoError(t, err)
	s := mcpserver.New(mcpserver.Options{
		Version: "test", Fleet: mcpserver.Fleet{Name: fl.Name, At: fl.Conn, Dispatcher: fl.Dispatcher, Journal: fl.Journal}, Tools: table,
		Rules: mcpserver.Rules{Policy: asks, ClientApproves: true}, Logger: logger, Tasks: mcpserver.Tasks{TaskAfter: taskAfter},
		Configure: fixtureOptions,
		Extend: func(server *mcp.Server, call mcp.ToolHandler) {
			extendFixture(server)
			t.Cleanup(func() {
				for session := range server.Sessions() { // of clients that did not end theirs
					_ = session.Close()
				}
			})
			for name, tool := range set {
				if tool.before != nil {
					server.AddTool(&mcp.Tool{Name: name, Description: described, InputSchema: fixtureSchema(tool.schema)}, tool.asking(server, call))
				}
			}
		},
	})
	t.Cleanup(s.Close)
	change = sync.OnceFunc(func() { s.SetTools(more) })
	return listen(t, s.Handler(mcpserver.HTTPOptions{}))
}

// fixtureTable has the tools of a set, and more that only have a name.
func fixtureTable(t *testing.T, set map[string]fixtureTool, more ...string) *tools.Table {
	t.Helper()
	var list []tools.Tool
	for _, name := range append(slices.Sorted(maps.Keys(set)), more...) {
		list = append(list, tools.Remote{Kind: fixtureKind, Resources: []tools.Resource{}}.Tool(tools.Definition{
			Name: name, Description: described, Schema: fixtureSchema(set[name].schema),
		}))
	}
	table, err := tools.NewTable(list...)
	require.NoError(t, err)
	return table
}

// listen serves HTTP on loopback until the test ends.
func listen(t *testing.T, handler http.Handler) (url string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	web := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = web.Serve(listener) // it ends with Close
	}()
	t.Cleanup(func() {
		_ = web.Close() // and streams of clients that only listen
		<-ended
	})
	return "http://" + listener.Addr().String() + "/mcp"
}

// fixtureSchema is a schema of arguments as clients see it, with room for what the server adds.
func fixtureSchema(given string) json.RawMessage {
	if given == "" {
		given = `{"type": "object", "properties": {"added": {}}}`
	}
	return json.RawMessage(given)
}

// asking does first what the server does, and then calls the fleet.
func (f fixtureTool) asking(server *mcp.Server, call mcp.ToolHandler) mcp.ToolHandler {
	return func(ctx context.Context, request *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		result, added, err := f.before(server, request)
		if result != nil || err != nil {
			return result, err
		}
		arguments := map[string]any{}
		if len(request.Params.Arguments) > 0 {
			if err := json.Unmarshal(request.Params.Arguments, &arguments); err != nil {
				return nil, err
			}
		}
		if added != nil {
			arguments["added"] = added
		}
		if request.Params.Arguments, err = json.Marshal(arguments); err != nil {
			return nil, err
		}
		return call(ctx, request)
	}
}

// contents are what a tool answers that speaks the protocol itself.
func contents(blocks ...any) kinds.Handler {
	return func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
		return json.Marshal(map[string]any{"content": blocks})
	}
}

func text(s string) map[string]any { return map[string]any{"type": "text", "text": s} }

func says(s string) kinds.Handler { return contents(text(s)) }

// added answers with what the server added to the arguments, in words before it.
func added(format string) kinds.Handler {
	return func(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
		var given struct {
			Added any `json:"added"`
		}
		if err := json.Unmarshal(arguments, &given); err != nil {
			return nil, err
		}
		return says(fmt.Sprintf(format, given.Added))(ctx, h, arguments)
	}
}

const (
	// redPixel and silence are the least files of their kinds, in base64.
	redPixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
	silence  = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
)

var errIntended = errors.New("this tool intentionally returns an error for testing")

// fixtureTools are the tools by their names.
func fixtureTools() map[string]fixtureTool {
	image := map[string]any{"type": "image", "data": redPixel, "mimeType": "image/png"}
	resource := func(uri string) map[string]any {
		return map[string]any{"type": "resource", "resource": map[string]any{
			"uri": uri, "mimeType": "text/plain", "text": "This is an embedded resource",
		}}
	}
	set := map[string]fixtureTool{
		"test_simple_text":            {run: says("This is a simple text response for testing.")},
		"test_image_content":          {run: contents(image)},
		"test_audio_content":          {run: contents(map[string]any{"type": "audio", "data": silence, "mimeType": "audio/wav"})},
		"test_embedded_resource":      {run: contents(resource("test://embedded-resource"))},
		"test_multiple_content_types": {run: contents(text("This is text content"), image, resource("test://embedded-in-multiple"))},
		"test_tool_with_logging":      {run: logging},
		"test_tool_with_progress":     {run: progressing},
		"test_error_handling": {run: func(context.Context, *kinds.Attempt, json.RawMessage) (json.RawMessage, error) {
			return nil, errIntended
		}},
		"test_reconnection": {before: func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
			if request.Extra != nil && request.Extra.CloseSSEStream != nil {
				request.Extra.CloseSSEStream(mcp.CloseSSEStreamArgs{RetryAfter: 10 * time.Millisecond})
			}
			return nil, nil, nil
		}},
		"json_schema_2020_12_tool": {schema: schema2020},
	}
	maps.Copy(set, askingTools())
	maps.Copy(set, roundTools())
	maps.Copy(set, taskTools())
	return set
}

// logging writes three lines of live output, which clients get as log messages.
func logging(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
	for _, line := range []string{"Tool execution started", "Tool processing data", "Tool execution completed"} {
		h.Output([]byte(line + "\n"))
	}
	return says("Tool with logging executed successfully")(ctx, h, arguments)
}

// progressing writes live output for longer than it takes the server to tell of it three times,
// also on a busy machine.
func progressing(ctx context.Context, h *kinds.Attempt, arguments json.RawMessage) (json.RawMessage, error) {
	for step := range 60 {
		h.Output(fmt.Appendf(nil, "Completed step %d\n", step))
		if !pause.For(ctx, 50*time.Millisecond) {
			return nil, ctx.Err()
		}
	}
	return says("Tool with progress executed successfully")(ctx, h, arguments)
}

// schema2020 has what versions of JSON schema before 2020-12 do not.
const schema2020 = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {"address": {
		"$anchor": "addressDef", "type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}
	}},
	"properties": {
		"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]}, "phone": {"type": "string"}, "email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// coordinator is the binary of this run of the tests; set by TestMain.
var coordinator string

func TestMain(m *testing.M) {
	if os.Getenv(asPerson) != "" {
		if err := person(os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	natsiotest.Overlap()
	os.Exit(processtest.Built("", false, func(dir string) int {
		coordinator = filepath.Join(dir, "coordinator")
		return processtest.Leakless(m)
	}, "./cmd/coordinator"))
}
