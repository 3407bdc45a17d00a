package integration

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
)

// TestTelemetry_OneTraceThroughAllProcesses follows a tool call from the turn that
// asked for it to the command in the sandbox, across two processes.
func TestTelemetry_OneTraceThroughAllProcesses(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	b := newBroker(t)
	file := filepath.Join(t.TempDir(), "worker.jsonl")
	workers := startWorkers(t, 1, append(slices.Clone(b.flags), "--trace-file", file, "--log-level", "debug"), receiver.Env()...)
	model := script(t,
		say("Both.", bash("c1", "echo traced"), use("c2", "write", object{"path": "a.txt", "content": "x"})),
		say("Done."))
	args := append([]string{"run", "--json", "--model", model}, b.flags...)
	got := succeed(t, coordinator, launch{args: append(args, "do it"), env: receiver.Env()})
	require.Empty(t, got.stderr, "telemetry says nothing")
	told := results(events(t, got.stdout))

	const spansOfCall = 5 // dispatch, publish, process, execute_tool, sandbox exec
	spans := receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool { return len(spans) >= 2+2+2*spansOfCall })
	tree := telemetrytest.Tree(spans)
	oneTrace(t, spans, "run")
	root := only(t, spans, genaiconv.OperationAgent)
	require.Equal(t, "run", parent(t, spans, root).Name, tree)
	list := events(t, got.stdout)
	ended := list[len(list)-1]
	require.Equal(t, root.TraceID, ended.TraceID)
	show := execute(t, coordinator, launch{args: append([]string{"session", "show", ended.SessionID}, b.flags...)})
	require.Regexp(t, `(?m)^1 +answered .* `+root.TraceID+` +do it$`, show.stdout)
	chats := telemetrytest.Find(spans, genaiconv.OperationChat+" "+model)
	require.Len(t, chats, 2, tree)
	for _, chat := range chats {
		require.True(t, chat.ChildOf(root), tree)
	}
	for id, name := range map[string]string{"c1": "bash", "c2": "write"} {
		tool := only(t, spans, telemetry.SpanExecuteTool(name))
		require.Equal(t, id, tool.Attributes[string(genaiconv.ToolCallID)], tree)
		process := parent(t, spans, tool)
		require.Equal(t, telemetry.SpanProcess, process.Name, tree)
		require.Equal(t, "consumer", process.Kind)
		require.Equal(t, told[id].CallID, process.Attributes[string(telemetry.KeyCallID)])
		require.Contains(t, workers, process.Attributes[string(telemetry.KeyWorkerID)])
		publish := parent(t, spans, process)
		require.Equal(t, telemetry.SpanPublish, publish.Name, tree)
		require.Equal(t, "producer", publish.Kind)
		dispatch := parent(t, spans, publish)
		require.Equal(t, telemetry.SpanDispatch(name), dispatch.Name, tree)
		require.True(t, dispatch.ChildOf(root), tree)
		for span, service := range map[*telemetrytest.Span]string{
			publish: "toolfleet-coordinator", process: "toolfleet-worker", tool: "toolfleet-worker",
		} {
			require.Equal(t, service, span.Service, tree)
		}
		exec := child(t, spans, tool)
		require.Equal(t, telemetry.SpanSandboxExec, exec.Name, tree)
		require.Equal(t, "toolfleet-worker", exec.Service)
		receiver.WaitForRecords(t, func(records []*telemetrytest.Record) bool {
			return slices.ContainsFunc(records, func(r *telemetrytest.Record) bool {
				return r.Body == "call executed" && r.Service == "toolfleet-worker" && r.TraceID == tool.TraceID &&
					slices.Contains([]string{process.SpanID, tool.SpanID}, r.SpanID) &&
					r.Attributes["call_id"] == told[id].CallID
			})
		})
		require.Len(t, telemetrytest.Find(telemetrytest.ReadFile(t, file), tool.Name), 1, "the worker's file")
	}
}

// TestTelemetry_MetricsOfAFleet: what processes export is described in the documents; a coordinator
// reports what is stored and waits, and a worker which other one is lost.
func TestTelemetry_MetricsOfAFleet(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	b := newBroker(t)
	killed := startWorkers(t, 1, b.flags)
	succeed(t, coordinator, launch{args: append(append([]string{"call"}, b.flags...), "bash", `{"command":"true"}`)}) // by then its heartbeat is stored
	for _, w := range killed {
		w.kill(t)
	}
	startWorkers(t, 1, b.flags, receiver.Env()...)
	serve := start(t, coordinator, launch{
		args: append([]string{"serve", "--model", script(t, say("", bash("c1", "echo measured")), say("Done."))}, b.flags...), env: receiver.Env(),
	})
	serve.waitFor(t, `coordinator: serving sessions`)
	succeed(t, coordinator, launch{args: append(append([]string{"submit", "--workspace", t.TempDir()}, b.flags...), "do it"), env: receiver.Env()})
	has := func(points []*telemetrytest.Point, name, key, value string, least float64) bool {
		return slices.ContainsFunc(points, func(p *telemetrytest.Point) bool {
			return p.Name == name && (key == "" || p.Attributes[key] == value) && p.Value >= least
		})
	}
	points := receiver.WaitForPoints(t, func(points []*telemetrytest.Point) bool {
		return has(points, telemetry.MetricWorkerLost, string(telemetry.KeyPool), "default", 1) &&
			has(points, telemetry.MetricStreamMessages, string(telemetry.KeyStream), "TF_SESSIONS", 5) &&
			has(points, telemetry.MetricStreamSize, string(telemetry.KeyStream), "TF_SESSIONS", 100) &&
			has(points, telemetry.MetricStreamLimit, string(telemetry.KeyStream), "TF_CALLS", 1<<20) &&
			has(points, telemetry.MetricLaneWaiting, string(telemetry.KeyPool), "default", 0) &&
			has(points, telemetry.MetricLaneWaiting, string(telemetry.KeyPool), "session", 0) &&
			has(points, telemetry.MetricJournalAppend, "", "", 0) &&
			has(points, genaiconv.MetricAgent, string(telemetry.KeyOutcome), "answered", 0)
	})
	documents, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations", "watch.md"))
	require.NoError(t, err)
	for _, point := range points {
		require.Contains(t, string(documents), "`"+point.Name+"`")
		for key := range point.Attributes {
			require.Contains(t, string(documents), "`"+key+"`", point.Name)
		}
	}
}

// TestTelemetry_TheTraceOfTheEnvironmentContinues: a program that runs toolfleet gives it its
// trace.
func TestTelemetry_TheTraceOfTheEnvironmentContinues(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	got := execute(t, coordinator, launch{
		args: []string{"call", "--sandbox", "process", "--workspace", t.TempDir(), "--data", t.TempDir(), "list", "{}"},
		env:  append(receiver.Env(), "TRACEPARENT=00-"+trace+"-b7ad6b7169203331-01"),
	})
	require.Equal(t, 0, got.code, got.stderr)
	spans := receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool { return len(spans) >= 4 })
	for _, span := range spans {
		require.Equal(t, trace, span.TraceID, telemetrytest.Tree(spans))
	}
}

// TestTelemetry_WhatCannotBeExportedIsReported: a collector that accepts connections and never
// answers, and one that answers 503 as long as it lives.
func TestTelemetry_WhatCannotBeExportedIsReported(t *testing.T) {
	t.Parallel()
	silent, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	unavailable := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(unavailable.Close)
	for name, collector := range map[string]struct{ protocol, url string }{
		"silent grpc": {"grpc", "http://" + silent.Addr().String()},
		"silent http": {"http/protobuf", "http://" + silent.Addr().String()},
		"503":         {"http/protobuf", unavailable.URL},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, coordinator, launch{
				args: []string{"call", "--sandbox", "process", "--workspace", t.TempDir(), "--data", t.TempDir(), "list", "{}"},
				env:  []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + collector.url, "OTEL_EXPORTER_OTLP_PROTOCOL=" + collector.protocol},
			})
			require.Equal(t, 0, got.code, got.stderr)
			require.Contains(t, got.stderr, "could not be exported, and are lost")
		})
	}
}

// TestTelemetry_SubmitIsOneTrace: the turn runs in another process than the one that asked for it,
// and its calls in a third.
func TestTelemetry_SubmitIsOneTrace(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	b := newBroker(t)
	startWorkers(t, 1, b.flags, receiver.Env()...)
	model := script(t, say("", bash("c1", "echo traced")), say("Done."))
	serve := start(t, coordinator, launch{args: append([]string{"serve", "--model", model}, b.flags...), env: receiver.Env()})
	serve.waitFor(t, `coordinator: serving sessions`)
	submit := func(env []string, flags ...string) finished {
		got := succeed(t, coordinator, launch{args: append(append([]string{"submit", "--workspace", t.TempDir()}, flags...), append(b.flags, "do it")...), env: env})
		return got
	}

	got := submit(receiver.Env())
	spans := receiver.WaitFor(t, telemetrytest.Has("submit", genaiconv.OperationAgent, telemetry.SpanSandboxExec, telemetry.SpanDispatch("workspace_export")))
	tree := telemetrytest.Tree(spans)
	root := oneTrace(t, spans, "submit")
	require.Contains(t, got.stderr, "trace "+root.TraceID)
	turn := only(t, spans, genaiconv.OperationAgent)
	process := parent(t, spans, turn)
	require.Equal(t, telemetry.SpanProcess, process.Name, tree)
	require.Equal(t, "toolfleet-coordinator", process.Service, tree)
	require.True(t, parent(t, spans, parent(t, spans, process)).ChildOf(root), tree)
	require.True(t, only(t, spans, telemetry.SpanDispatch("bash")).ChildOf(turn), tree)

	// Who asks exports nothing: then the trace is that of the coordinator, and is told as well.
	list := events(t, submit(nil, "--json").stdout)
	ended := list[len(list)-1]
	require.NotEqual(t, root.TraceID, ended.TraceID)
	spans = receiver.WaitFor(t, func(spans []*telemetrytest.Span) bool {
		return len(telemetrytest.Find(spans, genaiconv.OperationAgent)) == 2
	})
	require.Equal(t, telemetrytest.Find(spans, genaiconv.OperationAgent)[1].TraceID, ended.TraceID)
}

// TestTelemetry_SpansSurviveTheirWorker: a worker that is killed when a call has ended has exported
// the spans of the call, although spans are not due for long.
func TestTelemetry_SpansSurviveTheirWorker(t *testing.T) {
	t.Parallel()
	receiver := telemetrytest.Start(t)
	b := newBroker(t)
	workers := startWorkers(t, 1, b.flags, append(receiver.Env(), "OTEL_BSP_SCHEDULE_DELAY=3600000")...)
	model := script(t, say("", bash("c1", "echo traced")), say("Done."))
	got := execute(t, coordinator, launch{args: append(append([]string{"run", "--model", model}, b.flags...), "do it"), env: receiver.Env()})
	for _, w := range workers {
		w.kill(t)
	}
	require.Equal(t, 0, got.code, got.stderr)
	spans := receiver.WaitFor(t, telemetrytest.Has("run", telemetry.SpanProcess, telemetry.SpanExecuteTool("bash"), telemetry.SpanSandboxExec))
	oneTrace(t, spans, "run")
}

// oneTrace returns the root of the only trace, in which nothing has failed.
func oneTrace(tb testing.TB, spans []*telemetrytest.Span, name string) *telemetrytest.Span {
	tb.Helper()
	tree := telemetrytest.Tree(spans)
	root := only(tb, spans, name)
	require.Empty(tb, root.ParentID, tree)
	for _, span := range spans {
		require.Equal(tb, root.TraceID, span.TraceID, tree)
		require.False(tb, span.Failed, tree)
		if span != root {
			parent(tb, spans, span)
		}
	}
	return root
}

func only(tb testing.TB, spans []*telemetrytest.Span, name string) *telemetrytest.Span {
	tb.Helper()
	found := telemetrytest.Find(spans, name)
	require.Len(tb, found, 1, "%s in\n%s", name, telemetrytest.Tree(spans))
	return found[0]
}

func parent(tb testing.TB, spans []*telemetrytest.Span, of *telemetrytest.Span) *telemetrytest.Span {
	tb.Helper()
	for _, span := range spans {
		if of.ChildOf(span) {
			return span
		}
	}
	tb.Fatalf("%s has no parent in\n%s", of.Name, telemetrytest.Tree(spans))
	return nil
}

func child(tb testing.TB, spans []*telemetrytest.Span, of *telemetrytest.Span) *telemetrytest.Span {
	tb.Helper()
	for _, span := range spans {
		if span.ChildOf(of) {
			return span
		}
	}
	tb.Fatalf("%s has no child in\n%s", of.Name, telemetrytest.Tree(spans))
	return nil
}

// TestTelemetry_SilentWhenUnset: without OTEL_* variables nothing is sent, not even to the
// places where collectors usually are, and nothing is printed.
func TestTelemetry_SilentWhenUnset(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	for _, address := range []string{"127.0.0.1:4317", "127.0.0.1:4318"} {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Logf("cannot watch %s: %v", address, err)
			continue
		}
		done := make(chan struct{})
		t.Cleanup(func() { _ = listener.Close(); <-done })
		go func() {
			defer close(done)
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				connections.Add(1)
				_ = conn.Close()
			}
		}()
	}
	b := newBroker(t)
	workers := startWorkers(t, 1, b.flags)
	args := append([]string{"run", "--json", "--model", script(t, say("", bash("c1", "env")), say("Done."))}, b.flags...)
	got := succeed(t, coordinator, launch{args: append(args, "do it")})
	require.Empty(t, got.stderr)
	list := events(t, got.stdout)
	require.Len(t, list, 6)
	require.NotContains(t, results(list)["c1"].Content, "OTEL", "a clean environment in the sandbox")
	for _, w := range workers {
		w.stop(t)
		require.Empty(t, w.stdout.String())
		require.Equal(t, 3, strings.Count(w.stderr.String(), "\n"), "warning, ready, draining: %s", w.stderr)
	}
	require.Zero(t, connections.Load())
}

// scraped is a process whose metrics Prometheus could scrape.
type scraped struct {
	*process

	url string
}

// startScraped starts a process on a port of its own, and returns when its stderr matches.
func startScraped(tb testing.TB, binary string, args []string, ready string) scraped {
	tb.Helper()
	const host = "127.0.0.1"
	port := strconv.Itoa(natsiotest.FreePorts(tb, 1)[0]) // which no connection gets before the process has it
	p := start(tb, binary, launch{args: args, env: []string{
		"OTEL_METRICS_EXPORTER=prometheus", "OTEL_EXPORTER_PROMETHEUS_HOST=" + host, "OTEL_EXPORTER_PROMETHEUS_PORT=" + port,
	}})
	p.waitFor(tb, ready)
	return scraped{process: p, url: "http://" + net.JoinHostPort(host, port) + "/metrics"}
}

// metrics are what a process tells at the moment, as text.
func (s scraped) metrics(tb testing.TB) string {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, s.url, http.NoBody)
	require.NoError(tb, err)
	response, err := http.DefaultClient.Do(req)
	require.NoError(tb, err, s)
	defer func() { require.NoError(tb, response.Body.Close()) }()
	require.Equal(tb, http.StatusOK, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(tb, err)
	return string(body)
}

// sum adds up the samples of a metric that have all of the labels, as in `error_type="not_found"`.
func sum(tb testing.TB, metrics, name string, labels ...string) float64 {
	tb.Helper()
	total := 0.0
	for _, sample := range regexp.MustCompile(`(?m)^`+name+`\{(.*)\} (\S+)$`).FindAllStringSubmatch(metrics, -1) {
		has := true
		for _, label := range labels {
			has = has && strings.Contains(sample[1], label)
		}
		if has {
			value, err := strconv.ParseFloat(sample[2], 64)
			require.NoError(tb, err)
			total += value
		}
	}
	return total
}

// requireSum checks sums of metrics, by name and labels: {"name", "label", ...}.
func requireSum(tb testing.TB, metrics string, want float64, name string, labels ...string) {
	tb.Helper()
	require.InDelta(tb, want, sum(tb, metrics, name, labels...), 1e-9, "%s %q in\n%s", name, labels, metrics)
}

// TestMetrics_TellAnOperatorWhatHappens scrapes real processes while a turn has a call that is ok,
// one that fails, and one that loses its worker.
func TestMetrics_TellAnOperatorWhatHappens(t *testing.T) {
	t.Parallel()
	hold, count := newGate(t), newTally(t)
	last := say("Answered.")
	last["usage"] = object{"input_tokens": 30, "output_tokens": 4}
	model := script(t,
		say("Fine.", bash("c1", "true")), say("Fails.", use("c2", "read", object{"path": "missing"})),
		say("Slow.", bash("c3", count.add("begun")+"; "+hold.pass())), last)
	b := newBroker(t)
	args := append([]string{"--sandbox", "process", "--lease", lease.String(), "--data", filepath.Join(t.TempDir(), "data")}, b.flags...)
	workers := []scraped{startScraped(t, worker, args, "takes calls"), startScraped(t, worker, args, "takes calls")}
	serve := startScraped(t, coordinator, append([]string{"serve", "--model", model}, b.flags...), "serving sessions")
	p := start(t, coordinator, launch{args: append(append([]string{"submit"}, b.flags...), "do it"), env: []string{"OTEL_METRICS_EXPORTER=prometheus"}})
	waitUntil(t, func() bool { return count.count() == 1 })

	const def, none = `toolfleet_pool="default"`, `toolfleet_sandbox_level="none"`
	lost, survivor := workers[0], workers[1]
	if sum(t, lost.metrics(t), "toolfleet_slot_usage", def) == 0 {
		lost, survivor = survivor, lost
	}
	before := lost.metrics(t)
	requireSum(t, before, 1, "toolfleet_slot_usage", def)
	requireSum(t, before, 4, "toolfleet_slot_limit", def)
	requireSum(t, before, 1, "toolfleet_lane_held", def)
	requireSum(t, before, 1, "toolfleet_sandbox_count", `toolfleet_sandbox_driver="process"`, none)
	requireSum(t, before, 1, "toolfleet_call_ended_total", def, `gen_ai_tool_name="bash"`, `toolfleet_status="ok"`)
	requireSum(t, before, 1, "toolfleet_call_ended_total", def, `gen_ai_tool_name="read"`, `toolfleet_status="failed"`, `error_type="not_found"`)
	requireSum(t, before, 3, "toolfleet_call_queue_time_seconds_count", def)
	requireSum(t, before, 0, "toolfleet_call_repeated_total")
	under := serve.metrics(t)
	requireSum(t, under, 1, "toolfleet_call_active", def)
	requireSum(t, under, 1, "toolfleet_slot_usage", `toolfleet_pool="session"`)

	lost.kill(t)
	waitUntil(t, func() bool { return count.count() == 2 })
	hold.open(t)
	require.Equal(t, 0, p.wait(t), p)
	waitUntil(t, func() bool { return sum(t, survivor.metrics(t), "toolfleet_call_ended_total") == 1 })
	after := survivor.metrics(t)
	requireSum(t, after, 1, "toolfleet_call_ended_total", def, `gen_ai_tool_name="bash"`, `toolfleet_status="ok"`)
	requireSum(t, after, 1, "toolfleet_call_repeated_total", def, `gen_ai_tool_name="bash"`)
	requireSum(t, after, 1, "gen_ai_execute_tool_duration_seconds_count", `gen_ai_tool_name="bash"`)
	require.GreaterOrEqual(t, sum(t, after, "toolfleet_command_ended_total", `toolfleet_reason="exited"`, none), 1.0)

	waitUntil(t, func() bool {
		return sum(t, serve.metrics(t), "toolfleet_call_ended_total", `toolfleet_pool="session"`, `toolfleet_status="ok"`) == 1
	})
	turn := serve.metrics(t)
	requireSum(t, turn, 1, "gen_ai_invoke_agent_duration_seconds_count", `toolfleet_outcome="answered"`)
	requireSum(t, turn, 4, "gen_ai_client_operation_duration_seconds_count", `gen_ai_request_model="`+model+`"`)
	requireSum(t, turn, 30, "gen_ai_client_inference_usage_input_tokens_total")
	requireSum(t, turn, 4, "gen_ai_client_inference_usage_output_tokens_total")
	requireSum(t, turn, 3, "messaging_client_sent_messages_total", def)
	requireSum(t, turn, 2, "toolfleet_call_duration_seconds_count", `gen_ai_tool_name="bash"`, `toolfleet_status="ok"`)
	requireSum(t, turn, 1, "toolfleet_call_duration_seconds_count", `gen_ai_tool_name="read"`, `error_type="not_found"`)
	requireSum(t, turn, 0, "toolfleet_call_active")
	for _, told := range []string{before, under, after, turn} {
		for _, secret := range []string{"missing", "do it", count.file, "sandbox/", "session/"} {
			require.NotContains(t, told, secret, "bounded, and nothing of what was said")
		}
	}
	survivor.stop(t)
	serve.stop(t)
}
