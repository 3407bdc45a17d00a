package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
)

// collect starts the collector of OpenTelemetry, which passes what it gets on to a receiver, until
// the test ends. It returns the variables that make a process export to it by gRPC, and its URL for
// exports by HTTP.
func collect(t *testing.T, receiver *telemetrytest.Receiver) (env []string, url string) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "collector")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join("..", "..", "tools", "collector"), "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := build.CombinedOutput()
	require.NoError(t, err, "%s", output)
	ports := natsiotest.FreePorts(t, 2)
	address, web := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf("127.0.0.1:%d", ports[1])
	config := filepath.Join(t.TempDir(), "collector.yaml")
	require.NoError(t, os.WriteFile(config, []byte(fmt.Sprintf(`
receivers: {otlp: {protocols: {grpc: {endpoint: %q}, http: {endpoint: %q}}}}
exporters: {otlp_http: {endpoint: %q}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    traces: {receivers: [otlp], exporters: [otlp_http]}
    metrics: {receivers: [otlp], exporters: [otlp_http]}
    logs: {receivers: [otlp], exporters: [otlp_http]}
`, address, web, receiver.URL)), 0o600))
	said, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	run := exec.CommandContext(context.WithoutCancel(t.Context()), program, "--config", config)
	run.Stdout, run.Stderr = said, said
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		_ = run.Process.Signal(os.Interrupt)
		ended := run.Wait()
		_ = said.Close()
		if t.Failed() {
			log, _ := os.ReadFile(said.Name())
			t.Logf("the collector ended with %v and wrote:\n%s", ended, log)
		}
	})
	require.Eventually(t, func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond, "the collector does not listen")
	return []string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://" + address, "OTEL_EXPORTER_OTLP_PROTOCOL=grpc",
		"OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_BLRP_SCHEDULE_DELAY=50", "OTEL_METRIC_EXPORT_INTERVAL=100",
	}, "http://" + web
}

// TestCollector has a session with a sub-agent and an MCP server, which is a toolfleet itself,
// export to OpenTelemetry's collector: that gets one trace through all of them, with the names of
// the conventions. A turn that another process resumes is linked to the trace of that process.
func TestCollector(t *testing.T) {
	t.Parallel()
	if !*tables {
		t.Skip("the collector is built from 150 modules: make interop runs it")
	}
	receiver, dir, workspace := telemetrytest.Start(t), t.TempDir(), t.TempDir()
	env, _ := collect(t, receiver)
	file := filepath.Join(dir, "trace.jsonl")
	inner := map[string]string{}
	for _, variable := range append(environment(t.TempDir()), env...) {
		name, value, _ := strings.Cut(variable, "=")
		inner[name] = value
	}
	for name, content := range map[string]any{
		"mcp.json": map[string]any{"mcpServers": map[string]any{"inner": map[string]any{
			"command": coordinator, "args": []string{"mcp", "--sandbox", "process", "--workspace", t.TempDir()}, "env": inner,
		}}},
		"parent.json": steps(
			calls("agent", map[string]any{"prompt": "look", "agent": "child"}), calls("inner__bash", map[string]any{"command": "echo inside"}),
			// The first process is killed in this call. A second run of it ends at once.
			calls("bash", map[string]any{"command": "test -f begun || { touch begun; sleep 600; }"}), map[string]any{"text": "Done."}, map[string]any{"text": "More."}),
		"child.json": steps(calls("bash", map[string]any{"command": "echo child"}), map[string]any{"text": "I looked."}),
	} {
		body, err := json.Marshal(content)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), body, 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "child.md"), []byte("---\nname: child\ndescription: Looks.\nmodel: script:child.json\n---\nLook.\n"), 0o600))
	session := func(prompt string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), coordinator, "run", "--session", "traced", "--sandbox", "process", "--workspace", workspace,
			"--model", "script:parent.json", "--toolset", "core,agents", "--agents", ".", "--mcp-config", "mcp.json", "--trace-file", file, "--log-level", "debug", prompt)
		cmd.Dir, cmd.Env = dir, append(environment(dir), env...)
		return cmd
	}
	first := session("go")
	require.NoError(t, first.Start())
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(workspace, "begun")); return err == nil }, patience, 10*time.Millisecond)
	spans := receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool {
		return telemetrytest.Has("execute_tool agent", "execute_tool inner__bash")(spans) && len(telemetrytest.Find(spans, "tools/call bash")) == 2
	})
	require.NoError(t, first.Process.Kill())
	_ = first.Wait() // it was killed
	tree, count := telemetrytest.Tree(spans), len(spans)
	agent := telemetrytest.Find(spans, "execute_tool agent")[0]
	for _, span := range spans {
		require.Equal(t, agent.TraceID, span.TraceID, tree)
	}
	for child, parent := range map[string]string{"invoke_agent child": "execute_tool agent", "chat script:child.json": "invoke_agent child"} {
		require.True(t, telemetrytest.Find(spans, child)[0].ChildOf(telemetrytest.Find(spans, parent)[0]), "%s in\n%s", child, tree)
	}
	client, server := telemetrytest.Find(spans, "tools/call bash")[0], telemetrytest.Find(spans, "tools/call bash")[1]
	if client.Kind == "server" {
		client, server = server, client
	}
	require.True(t, server.ChildOf(client), tree)
	at := slices.IndexFunc(spans, func(span *telemetrytest.Span) bool { return client.ChildOf(span) })
	require.GreaterOrEqual(t, at, 0, tree)
	require.True(t, spans[at].ChildOf(telemetrytest.Find(spans, "execute_tool inner__bash")[0]), tree)

	output, err := session("and more").CombinedOutput()
	require.NoError(t, err, "%s", output)
	spans = receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool {
		return len(telemetrytest.Find(spans, genaiconv.OperationAgent)) == 2
	})
	turns := telemetrytest.Find(spans, genaiconv.OperationAgent)
	if turns[0].TraceID != agent.TraceID { // they arrive in any order
		slices.Reverse(turns)
	}
	require.Equal(t, agent.TraceID, turns[0].TraceID)
	require.Equal(t, []string{turns[1].TraceID}, turns[0].Links)
	require.NotEqual(t, agent.TraceID, turns[1].TraceID)
	receiver.WaitForPoints(t, func(points []*telemetrytest.Point) bool {
		return slices.ContainsFunc(points, func(p *telemetrytest.Point) bool { return p.Name == genaiconv.MetricMCPClientSession })
	})
	var executed *telemetrytest.Record
	records := receiver.WaitForRecords(t, func(records []*telemetrytest.Record) bool {
		at := slices.IndexFunc(records, func(r *telemetrytest.Record) bool { return r.Body == "call executed" && r.SpanID != "" })
		if at >= 0 {
			executed = records[at]
		}
		return at >= 0
	})
	receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool {
		return slices.ContainsFunc(spans, func(s *telemetrytest.Span) bool { return s.TraceID == executed.TraceID && s.SpanID == executed.SpanID })
	})

	again := telemetrytest.Start(t)
	_, url := collect(t, again)
	written := telemetrytest.ReadFile(t, file)
	lines, err := os.ReadFile(file)
	require.NoError(t, err)
	for line := range bytes.Lines(lines) { // as viewers that open the file send it
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/traces", bytes.NewReader(line))
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	read := again.WaitFor(t, func(spans []*telemetrytest.Span) bool { return len(spans) == len(written) })
	byID := func(a, b *telemetrytest.Span) int { return strings.Compare(a.SpanID, b.SpanID) }
	require.Equal(t, slices.SortedFunc(slices.Values(written), byID), slices.SortedFunc(slices.Values(read), byID))
	require.NotEmpty(t, telemetrytest.Find(read, "tools/call bash"))
	fmt.Printf("\nOpenTelemetry collector: %d records of logs; a trace file of %d spans, of which a process was killed, is read whole\n", len(records), len(read))
	fmt.Printf("\nOpenTelemetry collector: one trace of %d spans through a sub-agent and an MCP server\n", count)
}

// steps is the script of a model.
func steps(list ...map[string]any) map[string]any { return map[string]any{"steps": list} }

// calls is a step that calls a tool.
func calls(tool string, arguments map[string]any) map[string]any {
	return map[string]any{"tool_calls": []any{map[string]any{"name": tool, "arguments": arguments}}}
}
