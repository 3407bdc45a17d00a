package integration

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

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
