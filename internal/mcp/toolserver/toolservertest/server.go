// Package toolservertest is a server of the Model Context Protocol for tests, whose tools do what
// servers may do: keep state, die, continue after a cancel, ask, and change their tools.
package toolservertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// variable makes a test binary the server.
const variable = "TOOLFLEET_TEST_MCP_SERVER"

// stateless selects a server of protocol 2026-07-28 or later; most servers are older.
const stateless = "stateless"

// undiscovered behaves as a server from before the protocol without sessions.
func undiscovered(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, r mcp.Request) (mcp.Result, error) {
		if method == "server/discover" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "no such method"}
		}
		return next(ctx, method, r)
	}
}

// Main is the server, in a process that a spec of [Program] has started; it does not return then. A
// TestMain begins with it.
func Main() {
	if os.Getenv(variable) != "" {
		Serve()
	}
}

// Serve is the server on standard input and output, as a program.
func Serve() {
	server := New()
	if os.Getenv(variable) != stateless {
		server.AddReceivingMiddleware(undiscovered)
	}
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Program is the spec of a server that is the running test binary.
func Program(name string) protocol.MCPServer {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return protocol.MCPServer{Name: name, Command: self, Env: map[string]string{variable: "1"}}
}

// Stateless is [Program] of the protocol since 2026-07-28, which has no sessions.
func Stateless(name string) protocol.MCPServer {
	spec := Program(name)
	spec.Env[variable] = stateless
	return spec
}

// Arguments are those of every tool.
type Arguments struct {
	File string `json:"file,omitempty" jsonschema:"a file to write, or a name"`
}

// New makes a server.
func New() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	s := &state{server: server}
	add := func(name, description string, annotations *mcp.ToolAnnotations, run func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error)) {
		mcp.AddTool(server, &mcp.Tool{Name: name, Description: description, Annotations: annotations},
			func(ctx context.Context, r *mcp.CallToolRequest, a Arguments) (*mcp.CallToolResult, any, error) {
				result, err := run(ctx, r, a.File)
				return result, nil, err
			})
	}
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true}
	add("count", "Counts its calls, and those that overlap.", nil, s.count)
	add("pid", "Tells the process.", reads, func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		return text(fmt.Sprint(os.Getpid())), nil
	})
	add("env", "Tells a variable.", reads, func(_ context.Context, _ *mcp.CallToolRequest, name string) (*mcp.CallToolResult, error) {
		return text(os.Getenv(name)), nil
	})
	add("fail", "Fails.", nil, func(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
		return nil, errors.New("no such account")
	})
	add("die", "Writes a file and dies.", nil, die)
	add("wait", "Writes a file, and waits until it is cancelled.", nil, wait)
	no := false
	server.AddTool(&mcp.Tool{
		Name: "parts", Title: "All parts", Description: "Returns every kind of content.",
		InputSchema: json.RawMessage(`{"type": "object"}`), OutputSchema: json.RawMessage(`{"type": "object", "properties": {"n": {"type": "integer"}}}`),
		Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no},
	}, parts)
	add("asks", "Asks a person.", nil, asks)
	add("form", "Asks a person, and tells the answer.", reads, form)
	add("samples", "Asks the model.", nil, samples)
	add("roots", "Tells the roots.", reads, roots)
	add("grow", "Adds a tool.", &mcp.ToolAnnotations{IdempotentHint: true, DestructiveHint: &no}, s.grow)
	return server
}

func text(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

type state struct {
	server  *mcp.Server
	calls   atomic.Int64
	running atomic.Int64
	overlap atomic.Int64
}

func (s *state) count(ctx context.Context, r *mcp.CallToolRequest, _ string) (*mcp.CallToolResult, error) {
	if s.running.Add(1) > 1 {
		s.overlap.Add(1)
	}
	defer s.running.Add(-1)
	for range 20 { // time in which others could come
		if err := r.Session.Ping(ctx, nil); err != nil {
			return nil, err
		}
	}
	return text(fmt.Sprintf("%d calls, %d overlap", s.calls.Add(1), s.overlap.Load())), nil
}

func (s *state) grow(context.Context, *mcp.CallToolRequest, string) (*mcp.CallToolResult, error) {
	mcp.AddTool(s.server, &mcp.Tool{Name: "grown", Description: "Is new."},
		func(context.Context, *mcp.CallToolRequest, Arguments) (*mcp.CallToolResult, any, error) {
			return text("new"), nil, nil
		})
	return text("grown"), nil
}

func die(_ context.Context, _ *mcp.CallToolRequest, file string) (*mcp.CallToolResult, error) {
	if err := os.WriteFile(file, []byte("begun"), 0o600); err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintln(os.Stderr, "the end is near")
	os.Exit(7)
	return nil, nil //nolint:nilnil // not reached
}

func wait(ctx context.Context, r *mcp.CallToolRequest, file string) (*mcp.CallToolResult, error) {
	err := r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
		ProgressToken: r.Params.GetProgressToken(), Progress: 1, Total: 3, Message: "waiting",
	})
	if err == nil {
		err = os.WriteFile(file, []byte("begun"), 0o600)
	}
	if err != nil {
		return nil, err
	}
	<-ctx.Done()
	return nil, errors.Join(ctx.Err(), os.WriteFile(file, []byte("cancelled"), 0o600))
}

func parts(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	return &mcp.CallToolResult{
		Content: []mcp.Content{
			&mcp.TextContent{Text: "a text"},
			&mcp.ImageContent{Data: []byte("\x89PNG"), MIMEType: "image/png"},
			&mcp.AudioContent{Data: []byte{1, 2}, MIMEType: "audio/wav"},
			&mcp.ResourceLink{URI: "file:///a.txt", Name: "a.txt", Description: "A file."},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "test://b", Text: "inside", MIMEType: "text/plain"}},
		},
		StructuredContent: map[string]any{"n": 1},
	}, nil
}

func asks(ctx context.Context, r *mcp.CallToolRequest, _ string) (*mcp.CallToolResult, error) {
	answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Your name?", RequestedSchema: map[string]any{
		"type": "object", "properties": map[string]any{"name": map[string]any{"type": "string"}},
	}})
	if err != nil {
		return nil, err
	}
	return text(answer.Action), nil
}

// form asks for a field of each kind, and all have defaults.
func form(ctx context.Context, r *mcp.CallToolRequest, _ string) (*mcp.CallToolResult, error) {
	answer, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "Who are you?", RequestedSchema: json.RawMessage(`{"type": "object", "properties": {
		"name": {"type": "string", "default": "Ann"}, "age": {"type": "integer", "default": 30}, "score": {"type": "number", "default": 9.5},
		"status": {"type": "string", "enum": ["active", "gone"], "default": "active"}, "sure": {"type": "boolean", "default": true}}}`)})
	if err != nil {
		return nil, err
	}
	content, err := json.Marshal(answer.Content)
	return text(answer.Action + " " + string(content)), err
}

func samples(ctx context.Context, r *mcp.CallToolRequest, _ string) (*mcp.CallToolResult, error) {
	_, err := r.Session.CreateMessage(ctx, &mcp.CreateMessageParams{MaxTokens: 1}) //nolint:staticcheck // servers do it
	return text(fmt.Sprint(err)), nil
}

func roots(ctx context.Context, r *mcp.CallToolRequest, _ string) (*mcp.CallToolResult, error) {
	list, err := r.Session.ListRoots(ctx, nil) //nolint:staticcheck // as above
	if err != nil {
		return nil, err
	}
	return text(list.Roots[0].URI), nil
}
