package toolserver_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// odd answers a request as no server of the SDK does; "" is no answer.
func odd(request []byte) string {
	var r struct {
		ID     json.RawMessage
		Method string
		Params struct{ Name string }
	}
	if json.Unmarshal(request, &r) != nil || r.ID == nil {
		return ""
	}
	result := "{}"
	switch r.Method {
	case "initialize":
		result = `{"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}`
	case "server/discover":
		return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "error": {"code": -32601, "message": "no such method"}}`, r.ID)
	case "tools/call":
		result = map[string]string{
			"numbers": `{"content": [{"type": "text", "text": "n"}], "structuredContent": {"n": 9007199254740993, "f": 1.10}, "_meta": {"a": 1}}`,
			"unknown": `{"content": [{"type": "text", "text": "before"}, {"type": "video", "url": "x"}, 5]}`,
			"broken":  `{"content": {"type": "text"}}`,
			"feigned": `{"content": [], "_meta": {"toolfleet/structured": "no JSON"}}`,
		}[r.Params.Name]
	}
	return fmt.Sprintf(`{"jsonrpc": "2.0", "id": %s, "result": %s}`, r.ID, result)
}

// oddProgram is a sandbox whose program is that server.
type oddProgram struct {
	sandbox.Sandbox

	starts int
}

// Exec implements [sandbox.Sandbox].
func (o *oddProgram) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	o.starts++
	input, fed := io.Pipe()
	go func() {
		defer fed.Close()
		for {
			select {
			case data, more := <-cmd.Feed:
				if !more {
					return
				}
				_, _ = fed.Write(data) // fails when the server has ended
			case <-ctx.Done():
				return
			}
		}
	}()
	lines := bufio.NewScanner(input)
	for lines.Scan() {
		if answer := odd(lines.Bytes()); answer != "" {
			cmd.Live(sandbox.Stdout, []byte(answer+"\n"))
		}
	}
	return sandbox.Result{Reason: sandbox.ReasonCancelled}, nil
}

// oddURL is that server at a URL, which answers by events or by plain messages.
func oddURL(t *testing.T, events bool) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, _ := io.ReadAll(r.Body)
		answer := odd(request)
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case answer == "":
			w.WriteHeader(http.StatusAccepted)
		case events:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = fmt.Fprintf(w, "event: message\ndata: %s\n\n", answer)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, answer)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestCall_WhatTheSDKDoesNotCarry(t *testing.T) {
	t.Parallel()
	specs := map[string]protocol.MCPServer{
		"program": {Name: "odd", Command: "p"},
		"events":  {Name: "odd", URL: oddURL(t, true)},
		"plain":   {Name: "odd", URL: oddURL(t, false)},
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers, box := toolserver.New(), &oddProgram{}
			t.Cleanup(func() { servers.End(); servers.Wait() })
			base := &http.Transport{}
			t.Cleanup(base.CloseIdleConnections)
			at := toolserver.Surroundings{Sandbox: box, HTTP: base}
			call := func(tool string) (*protocol.MCPCallResult, error) {
				return servers.Call(t.Context(), at, protocol.MCPCall{Server: spec, Tool: tool}, false)
			}
			value, err := call("numbers")
			require.NoError(t, err)
			require.Equal(t, `{"n": 9007199254740993, "f": 1.10}`, string(value.Structured), "numbers are no floats")

			value, err = call("unknown")
			require.NoError(t, err)
			require.Len(t, value.Content, 3)
			require.Equal(t, "before", value.Content[0].Text)
			require.Equal(t, `[content of unknown type "video": {"type": "video", "url": "x"}]`, value.Content[1].Text)

			value, err = call("feigned")
			require.NoError(t, err)
			_, err = json.Marshal(value)
			require.NoError(t, err, "a result that cannot be stored ends no call")

			_, err = call("broken")
			require.ErrorContains(t, err, "MCP server odd: its answer cannot be read")
			require.NotContains(t, err.Error(), "cancelled")
			_, err = call("numbers")
			require.NoError(t, err)
			if spec.URL == "" {
				require.Equal(t, 1, box.starts, "no answer ends the server")
			}
		})
	}
}

// A call names its trace to its server, in _meta.
func TestCall_NamesItsTrace(t *testing.T) {
	t.Parallel()
	requests := make(chan string, 16)
	answers := oddURL(t, false)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- string(body)
		request, err := http.NewRequestWithContext(r.Context(), r.Method, answers, bytes.NewReader(body))
		if err != nil {
			return
		}
		response, err := http.DefaultTransport.RoundTrip(request)
		if err != nil {
			return
		}
		defer func() { _ = response.Body.Close() }()
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	t.Cleanup(proxy.Close)
	servers := toolserver.New()
	t.Cleanup(func() { servers.End(); servers.Wait() })
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	ctx := telemetry.ExtractMeta(t.Context(), map[string]any{"traceparent": parent})
	_, err := servers.Call(ctx, toolserver.Surroundings{HTTP: base},
		protocol.MCPCall{Server: protocol.MCPServer{Name: "odd", URL: proxy.URL}, Tool: "numbers"}, false)
	require.NoError(t, err)
	sent := ""
	for len(requests) > 0 {
		if request := <-requests; strings.Contains(request, `"tools/call"`) {
			sent = request
		}
	}
	require.Contains(t, sent, `"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-`)
	require.Contains(t, sent, `"progressToken"`)
}
