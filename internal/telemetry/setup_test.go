package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// finished is what a child process left behind.
type finished struct {
	header nats.Header // from its stdout, which holds nothing else
	stdout string
	stderr string
	code   int
}

// run starts this test binary as a child with exactly the given OTEL_* variables.
func run(t *testing.T, mode string, stdin nats.Header, env ...string) finished {
	t.Helper()
	executable, err := os.Executable()
	require.NoError(t, err)
	input, err := json.Marshal(stdin)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), executable)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "OTEL_") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(append(cmd.Env, childMode+"="+mode), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &stdout, &stderr
	err = cmd.Run()
	done := finished{stdout: stdout.String(), stderr: stderr.String(), code: cmd.ProcessState.ExitCode()}
	if err == nil {
		require.NoError(t, json.Unmarshal(stdout.Bytes(), &done.header), "stdout holds something else: %q", done.stdout)
	}
	return done
}

// TestTrace_FollowsACallThroughProcesses is the reason for the package.
func TestTrace_FollowsACallThroughProcesses(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	publisher := run(t, "publish", nil, receiver.Env()...)
	require.Zero(t, publisher.code, publisher.stderr)
	require.Contains(t, publisher.header, "traceparent", "lower case")
	worker := run(t, "process", publisher.header, receiver.Env()...)
	require.Zero(t, worker.code, worker.stderr)
	require.Empty(t, publisher.stderr+worker.stderr)

	spans := receiver.WaitFor(t, telemetrytest.Has("dispatch read", "publish", "process", "execute_tool read"))
	require.Len(t, spans, 4)
	dispatch, publish := telemetrytest.Find(spans, "dispatch read")[0], telemetrytest.Find(spans, "publish")[0]
	process, tool := telemetrytest.Find(spans, "process")[0], telemetrytest.Find(spans, "execute_tool read")[0]
	require.Empty(t, dispatch.ParentID)
	require.True(t, publish.ChildOf(dispatch))
	require.True(t, process.ChildOf(publish), telemetrytest.Tree(spans))
	require.True(t, tool.ChildOf(process))

	require.Equal(t, "producer", publish.Kind)
	require.Equal(t, "nats", publish.Attributes["messaging.system"])
	require.Equal(t, "consumer", process.Kind)
	require.Equal(t, int64(2), process.Attributes["toolfleet.attempt"])
	require.InDelta(t, 1.5, process.Attributes["toolfleet.queue_ms"], 0)
	require.True(t, tool.Failed)
	require.Equal(t, telemetry.TypeOther, tool.Message)
	require.Equal(t, "_OTHER", tool.Attributes["error.type"])
	require.Equal(t, telemetry.Scope, tool.Scope)
	require.Equal(t, "child-publish", dispatch.Service)
	require.Equal(t, "child-process", tool.Service)
	require.Equal(t, "1.2.3", tool.Resource["service.version"])
	require.Equal(t, "instance-1", tool.Resource["service.instance.id"])
}

// A worker that is killed has exported the spans of the calls that it ended.
func TestTrace_EndedSpansSurviveTheirProcess(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	asItComes := slices.DeleteFunc(receiver.Env(), func(v string) bool { return strings.HasPrefix(v, "OTEL_BSP_") })
	require.Equal(t, -1, run(t, "killed", nil, asItComes...).code)
	require.NotEmpty(t, telemetrytest.Find(receiver.Spans(), telemetry.SpanProcess))
}

func TestSetup_TheEnvironmentNamesTheService(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "publish", nil, append(receiver.Env(),
		"OTEL_SERVICE_NAME=mine", "OTEL_RESOURCE_ATTRIBUTES=service.instance.id=i-9,team=blue")...)
	require.Zero(t, done.code, done.stderr)
	spans := receiver.WaitFor(t, telemetrytest.Has("dispatch read"))
	require.Equal(t, "mine", spans[0].Service)
	require.Equal(t, "i-9", spans[0].Resource["service.instance.id"])
	require.Equal(t, "blue", spans[0].Resource["team"])
	require.Equal(t, "1.2.3", spans[0].Resource["service.version"])
}

func TestSetup_TheTracesEndpointAloneIsEnough(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "publish", nil, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+receiver.URL+"/v1/traces")
	require.Zero(t, done.code, done.stderr)
	receiver.WaitFor(t, telemetrytest.Has("dispatch read", "publish"))
}

func TestSetup_IsSilent(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	for name, env := range map[string][]string{
		"when nothing is set":          nil,
		"when variables are empty":     {"OTEL_EXPORTER_OTLP_ENDPOINT=", "OTEL_TRACES_EXPORTER=", "OTEL_METRICS_EXPORTER=", "OTEL_LOGS_EXPORTER="},
		"when only details are set":    {"OTEL_EXPORTER_OTLP_PROTOCOL=nonsense", "OTEL_SERVICE_NAME=x", "OTEL_EXPORTER_PROMETHEUS_PORT=x"},
		"when the exporters are none":  append(receiver.Env(), "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none", "OTEL_LOGS_EXPORTER=none"),
		"when the SDK is disabled":     append(receiver.Env(), "OTEL_SDK_DISABLED=true"),
		"when it is disabled in caps":  append(receiver.Env(), "OTEL_SDK_DISABLED=TRUE"),
		"when disabled with a bad one": {"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=nonsense", "OTEL_METRICS_EXPORTER=nonsense", "OTEL_LOGS_EXPORTER=nonsense"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := run(t, "publish", nil, env...)
			require.Zero(t, done.code, done.stderr)
			require.Empty(t, done.header)
			require.Empty(t, done.stderr)
			require.Zero(t, receiver.Requests())
		})
	}
}

// TestSetup_SilentProcessesPassTheContextOn: a chain does not break at a process without telemetry.
func TestSetup_SilentProcessesPassTheContextOn(t *testing.T) {
	t.Parallel()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	done := run(t, "relay", nats.Header{"traceparent": {parent}, "tracestate": {"a=1"}})
	require.Zero(t, done.code, done.stderr)
	require.Equal(t, nats.Header{"traceparent": {parent}, "tracestate": {"a=1"}}, done.header)
}

func TestSetup_ConsoleNeverWritesToStdout(t *testing.T) {
	t.Parallel()
	done := run(t, "publish", nil, "OTEL_TRACES_EXPORTER=console")
	require.Zero(t, done.code, done.stderr)
	require.Contains(t, done.header, "traceparent")
	require.Contains(t, done.stderr, `"Name":"dispatch read"`)
}

func TestSetup_ErrorsNameTheVariable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ variable, says string }{
		"unknown exporter":     {"OTEL_TRACES_EXPORTER=zipkin", `OTEL_TRACES_EXPORTER="zipkin": must be "otlp", "console" or "none"`},
		"of metrics":           {"OTEL_METRICS_EXPORTER=statsd", `OTEL_METRICS_EXPORTER="statsd": must be "otlp", "prometheus", "console" or "none"`},
		"of logs":              {"OTEL_LOGS_EXPORTER=loki", `OTEL_LOGS_EXPORTER="loki": must be "otlp", "console" or "none"`},
		"unknown protocol":     {"OTEL_EXPORTER_OTLP_PROTOCOL=http/json", `OTEL_EXPORTER_OTLP_PROTOCOL="http/json": must be "grpc" or "http/protobuf"`},
		"protocol of a signal": {"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=udp", `OTEL_EXPORTER_OTLP_METRICS_PROTOCOL="udp": must be "grpc" or "http/protobuf"`},
		"no URL":               {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=:::bad", `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=":::bad": must be a URL, as in http://localhost:4318`},
		"no scheme":            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=localhost:4318", `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="localhost:4318": must be a URL`},
		"malformed attributes": {"OTEL_RESOURCE_ATTRIBUTES=team", "OTEL_RESOURCE_ATTRIBUTES"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := run(t, "publish", nil, "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", c.variable)
			require.Equal(t, 2, done.code)
			require.Empty(t, done.stdout)
			require.Equal(t, 1, strings.Count(done.stderr, c.says), done.stderr)
		})
	}
}

// TestLogs_LeaveByOTLP: a record inside of a span leads to it, there and in the process's own log,
// which has the same records, and neither has a secret.
func TestLogs_LeaveByOTLP(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "log", nil, receiver.Env()...)
	require.Zero(t, done.code, done.stderr)
	span := telemetrytest.Find(receiver.Spans(), telemetry.SpanProcess)[0]
	records := receiver.Records()
	require.Len(t, records, 2)
	require.Equal(t, &telemetrytest.Record{
		Service: "child-log", Scope: telemetry.Scope, Severity: "WARN", Body: "outside", Attributes: map[string]any{},
	}, records[0])
	require.Equal(t, span.TraceID, records[1].TraceID)
	require.Equal(t, span.SpanID, records[1].SpanID)
	require.Equal(t, "ERROR", records[1].Severity)
	require.Equal(t, "the password is xxxxx", records[1].Body)
	require.Equal(t, "nats://user:xxxxx@host", records[1].Attributes["server"])
	require.Equal(t, "dial user:xxxxx@host", records[1].Attributes["error"])
	require.Equal(t, int64(3), records[1].Attributes["tries"])
	require.Contains(t, done.stderr, "level=WARN msg=outside\n")
	require.Contains(t, done.stderr, "tries=3 trace_id="+span.TraceID+" span_id="+span.SpanID+"\n")
	require.NotContains(t, done.stderr, "hunter2")
	require.NotContains(t, done.stderr, "not enabled")
}

func TestLogs_ByTheirOwnVariables(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "log", nil, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT="+receiver.URL+"/v1/logs")
	require.Zero(t, done.code, done.stderr)
	require.Len(t, receiver.Records(), 2)
	require.Empty(t, receiver.Spans(), "no traces")
	require.NotContains(t, done.stderr, telemetry.LogTraceID, "there is no span")

	done = run(t, "log", nil, "OTEL_LOGS_EXPORTER=console")
	require.Zero(t, done.code, done.stderr)
	require.Contains(t, done.stderr, `"Value":"outside"`)
	require.Len(t, receiver.Records(), 2)
}

// TestLogs_ADeadCollectorHoldsUpNothing: it takes connections and never answers. Ten queues full of
// records are written at once, and the end waits for as long as it may.
func TestLogs_ADeadCollectorHoldsUpNothing(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	done := run(t, "log_much", nil, "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://"+listener.Addr().String()+"/v1/logs")
	require.Zero(t, done.code, done.stderr)
	require.Equal(t, 10*logQueue, strings.Count(done.stderr, "msg=again\n"))
	took, err := time.ParseDuration(done.header.Get("Took"))
	require.NoError(t, err)
	require.Less(t, took, time.Minute, "an export may take 10 s, and there would be 40")
}

// TestTraceFile_HasTheSpansOfProcesses: without any other exporter; two processes append to one
// file, and the second one is killed.
func TestTraceFile_HasTheSpansOfProcesses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	publisher := run(t, "publish", nil, traceFile+"="+path, "OTEL_EXPORTER_OTLP_HEADERS=a=b", "OTEL_EXPORTER_OTLP_COMPRESSION=gzip")
	require.Zero(t, publisher.code, publisher.stderr)
	require.Equal(t, -1, run(t, "killed", nil, traceFile+"="+path).code)
	worker := run(t, "process", publisher.header, traceFile+"="+path)
	require.Zero(t, worker.code, worker.stderr)
	spans := telemetrytest.ReadFile(t, path)
	require.Len(t, spans, 6, telemetrytest.Tree(spans))
	publish := telemetrytest.Find(spans, "publish")[0]
	require.True(t, publish.ChildOf(telemetrytest.Find(spans, "dispatch read")[0]))
	require.True(t, telemetrytest.Find(spans, "process")[1].ChildOf(publish), telemetrytest.Tree(spans))
	require.Equal(t, "child-process", telemetrytest.Find(spans, "process")[1].Service)
	require.Equal(t, int64(2), telemetrytest.Find(spans, "process")[1].Attributes["toolfleet.attempt"])
	require.Equal(t, "producer", publish.Kind)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
}

// TestTraceFile_AndACollector get the same spans.
func TestTraceFile_AndACollector(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	done := run(t, "publish", nil, append(receiver.Env(), traceFile+"="+path)...)
	require.Zero(t, done.code, done.stderr)
	byID := func(a, b *telemetrytest.Span) int { return strings.Compare(a.SpanID, b.SpanID) }
	require.Equal(t, slices.SortedFunc(slices.Values(receiver.Spans()), byID), slices.SortedFunc(slices.Values(telemetrytest.ReadFile(t, path)), byID))
}

// measured are the metrics of child mode "measure": name, unit, kind, value and attributes.
var measured = []telemetrytest.Point{
	{Name: "gen_ai.execute_tool.duration", Unit: "s", Kind: "histogram", Value: 90, Attributes: map[string]any{
		"toolfleet.pool": "default", "gen_ai.tool.name": "bash", "error.type": "out_of_memory",
	}},
	{Name: "mcp.client.operation.duration", Unit: "s", Kind: "histogram", Attributes: map[string]any{
		"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "echo", "error.type": "tool_error",
	}},
	{Name: "mcp.client.session.duration", Unit: "s", Kind: "histogram", Attributes: map[string]any{
		"mcp.protocol.version": "2025-11-25", "network.transport": "pipe",
	}},
	{Name: "toolfleet.call.ended", Unit: "{call}", Kind: "sum", Value: 1, Attributes: map[string]any{
		"toolfleet.pool": "default", "gen_ai.tool.name": "bash", "toolfleet.status": "failed", "error.type": "out_of_memory",
	}},
	{Name: "toolfleet.call.ended", Unit: "{call}", Kind: "sum", Value: 1, Attributes: map[string]any{
		"toolfleet.pool": "default", "gen_ai.tool.name": "bash", "toolfleet.status": "ok",
	}},
	{Name: "toolfleet.call.lane_time", Unit: "s", Kind: "histogram", Value: 1, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.call.queue_time", Unit: "s", Kind: "histogram", Value: 2, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.call.repeated", Unit: "{attempt}", Kind: "sum", Value: 1, Attributes: map[string]any{
		"toolfleet.pool": "default", "gen_ai.tool.name": "bash",
	}},
	{Name: "toolfleet.call.wait", Unit: "s", Kind: "sum", Value: 2.5, Attributes: map[string]any{
		"toolfleet.pool": "default", "toolfleet.tenant": "acme", "toolfleet.reason": "limit",
	}},
	{Name: "toolfleet.command.ended", Unit: "{command}", Kind: "sum", Value: 1, Attributes: map[string]any{
		"toolfleet.sandbox.driver": "ns", "toolfleet.sandbox.level": "full", "toolfleet.reason": "oom",
	}},
	{Name: "toolfleet.lane.held", Unit: "{lane}", Kind: "sum", Value: 3, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.lease.lost", Unit: "{lease}", Kind: "sum", Value: 1, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.sandbox.count", Unit: "{sandbox}", Kind: "sum", Value: 1, Attributes: map[string]any{
		"toolfleet.sandbox.driver": "ns", "toolfleet.sandbox.level": "full",
	}},
	{Name: "toolfleet.sandbox.open_time", Unit: "s", Kind: "histogram", Value: 1, Attributes: map[string]any{
		"toolfleet.sandbox.driver": "ns", "toolfleet.sandbox.level": "full", "error.type": "_OTHER",
	}},
	{Name: "toolfleet.sandbox.open_time", Unit: "s", Kind: "histogram", Value: 0.02, Attributes: map[string]any{
		"toolfleet.sandbox.driver": "ns", "toolfleet.sandbox.level": "full",
	}},
	{Name: "toolfleet.slot.limit", Unit: "{slot}", Kind: "sum", Value: 4, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.slot.usage", Unit: "{slot}", Kind: "sum", Value: 2, Attributes: map[string]any{"toolfleet.pool": "default"}},
	{Name: "toolfleet.worker.lost", Unit: "{worker}", Kind: "sum", Value: 1, Attributes: map[string]any{"toolfleet.pool": "default"}},
}

func TestMetrics_OfAWorkerLeaveByOTLP(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "measure", nil, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT="+receiver.URL+"/v1/metrics")
	require.Zero(t, done.code, done.stderr)
	require.Empty(t, done.header, "no traces")
	got := receiver.Points()
	require.Len(t, got, len(measured), telemetrytest.List(got))
	for i, point := range got {
		if point.Kind == "histogram" {
			require.Equal(t, uint64(1), point.Count)
			require.InDelta(t, 0.0001, point.Bounds[0], 0)
			require.InDelta(t, 600, point.Bounds[len(point.Bounds)-1], 0)
		}
		require.Equal(t, "child-measure", point.Service)
		require.Equal(t, "instance-1", point.Instance)
		require.Equal(t, telemetry.Scope, point.Scope)
		want := measured[i]
		if want.Name == genaiconv.MetricMCPClient || want.Name == genaiconv.MetricMCPClientSession {
			want.Value = point.Value // it took a moment
		}
		want.Count, want.Bounds, want.Service, want.Instance, want.Scope = point.Count, point.Bounds, point.Service, point.Instance, point.Scope
		require.Equal(t, want, *point)
	}
}

func TestMetrics_TheTracesEndpointAloneIsNotForThem(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	done := run(t, "measure", nil, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+receiver.URL+"/v1/traces")
	require.Zero(t, done.code, done.stderr)
	require.Empty(t, receiver.Points())
}

func TestMetrics_ConsoleNeverWritesToStdout(t *testing.T) {
	t.Parallel()
	done := run(t, "measure", nil, "OTEL_METRICS_EXPORTER=console")
	require.Zero(t, done.code, done.stderr)
	require.Contains(t, done.stderr, `"Name":"toolfleet.lane.held"`)
}

func TestMetrics_AreScrapedFromProcessesThatServe(t *testing.T) {
	t.Parallel()
	ports, err := embedded.FreePorts(t.Context(), 1) // which no connection gets meanwhile
	require.NoError(t, err)
	done := run(t, "scrape", nil, "OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT="+strconv.Itoa(ports[0]))
	require.Zero(t, done.code, done.stderr)
	for _, line := range []string{
		`toolfleet_call_ended_total{error_type="out_of_memory",gen_ai_tool_name="bash"`, `toolfleet_slot_limit{`,
		`toolfleet_call_queue_time_seconds_bucket{`, `service_name="child-scrape"`, `service_instance_id="instance-1"`,
	} {
		require.Contains(t, done.stderr, line)
	}
}

func TestMetrics_NobodyScrapesAProcessThatIsSoonOver(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "localhost:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	taken := []string{"OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT=" + port}
	done := run(t, "measure", nil, taken...)
	require.Zero(t, done.code, done.stderr)
	require.Empty(t, done.stderr)

	done = run(t, "scrape", nil, taken...)
	require.Equal(t, 2, done.code)
	require.Contains(t, done.stderr, `OTEL_EXPORTER_PROMETHEUS_PORT="`+port+`"`)
	require.Contains(t, done.stderr, "address already in use")
	for _, bad := range []string{"0", "65536", "http"} {
		done = run(t, "scrape", nil, "OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT="+bad)
		require.Equal(t, 2, done.code)
		require.Contains(t, done.stderr, `OTEL_EXPORTER_PROMETHEUS_PORT="`+bad+`": must be 1 to 65535`)
	}
}

// TestSetup_ADeadBackendCostsOneWarning exports five times to a port where nobody listens.
func TestSetup_ADeadBackendCostsOneWarning(t *testing.T) {
	t.Parallel()
	const nobody = "127.0.0.1:1"
	done := run(t, "keep_failing", nil,
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://"+nobody, "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=1")
	require.Zero(t, done.code, done.stderr)
	require.Equal(t, 1, strings.Count(done.stderr, "\n"), done.stderr)
	require.Contains(t, done.stderr, "level=WARN")
	require.Contains(t, done.stderr, "telemetry export failed")
	require.Contains(t, done.stderr, nobody, "says which backend")
}

// TestSetup_AsksTheGivenEnvironment: a program whose environment is injected stays silent
// whatever the process has.
func TestSetup_AsksTheGivenEnvironment(t *testing.T) {
	receiver := telemetrytest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
	shutdown, err := telemetry.Setup(t.Context(), "s", "v", &telemetry.Options{Getenv: func(string) string { return "" }})
	require.NoError(t, err)
	_, span := telemetry.Tracer().Start(t.Context(), "unseen")
	require.False(t, span.IsRecording())
	span.End()
	require.NoError(t, shutdown(t.Context()))
	require.Zero(t, receiver.Requests())
}

func TestErrorType(t *testing.T) {
	t.Parallel()
	coded := protocol.Errorf(protocol.CodeNotFound, "no file")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"its own word":             {coded, "not_found"},
		"its own word, wrapped":    {fmt.Errorf("read: %w", coded), "not_found"},
		"its own word, joined":     {errors.Join(errors.New("first"), coded), "not_found"},
		"its own before a context": {fmt.Errorf("%w: %w", context.Canceled, coded), "not_found"},
		"cancelled":                {fmt.Errorf("call: %w", context.Canceled), "cancelled"},
		"timeout":                  {fmt.Errorf("call: %w", context.DeadlineExceeded), "timeout"},
		"anything else":            {errors.New("secret text"), "_OTHER"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, telemetry.ErrorType(c.err))
		})
	}
}

// statusSpan records the status that was set.
type statusSpan struct {
	trace.Span

	set string
}

func (s *statusSpan) SetStatus(_ codes.Code, description string) { s.set = description }

func TestFail_NilIsNoFailure(t *testing.T) {
	t.Parallel()
	span := &statusSpan{Span: noop.Span{}}
	telemetry.Fail(span, nil)
	require.Empty(t, span.set)
	telemetry.Fail(span, errors.New("secret text"))
	require.Equal(t, telemetry.TypeOther, span.set)
}
