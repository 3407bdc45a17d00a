package telemetry_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	otelprometheus "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace"
	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/telemetry"
)

// root is the root of the repository.
const root = "../.."

// catalog is what this program measures, as its exporters have it.
type catalog struct {
	metrics map[string]map[string]bool // attributes by name
	series  map[string]map[string]bool // labels by name, as Prometheus has both
}

// measureAll records a value of each metric, with all its attributes.
func measureAll(ctx context.Context, meter metric.Meter) {
	failure := errors.New("failure")
	w := telemetry.NewWorkerMetrics(meter, "default", "ns", "full")
	w.Observe(ctx, func() (lanes, used, slots int) { return 3, 2, 4 })
	w.Opened(ctx, time.Second, failure)
	w.Opened(ctx, time.Second, nil)
	w.Started(ctx, "bash", 2, time.Second, time.Second)
	w.CommandEnded(ctx, "oom")
	w.Executed(ctx, "bash", "internal", time.Second)
	w.Ended(ctx, "bash", "failed", "internal")
	w.Waited(ctx, "acme", map[string]float64{"slot": 1})
	c := telemetry.NewCallMetrics(meter)
	c.Begun(ctx, "default", "acme")
	c.Begun(ctx, "default", "acme")
	c.Sent(ctx, "default", "acme", "busy")
	c.Ended(ctx, "default", "acme", "bash", "failed", "internal", time.Second)
	telemetry.NewTurnMetrics(meter).Ended(ctx, "m", "failed", "internal", new(1.5), time.Second)
	m := telemetry.NewModelMetrics(meter, "openai", "m")
	m.Waited(ctx, time.Second)
	m.Replied(ctx, time.Second, time.Second, telemetry.Tokens{Input: 1, Output: 1, Cached: 1, Reasoning: 1}, nil)
	m.Replied(ctx, time.Second, 0, telemetry.Tokens{}, failure)
	telemetry.ObserveStored(meter, func(context.Context) telemetry.Stored {
		return telemetry.Stored{Streams: []telemetry.Stream{{Name: "TF_CALLS", Pool: "default", Messages: 1, Bytes: 1, Limit: 2}}, Waiting: map[string]int64{"default": 1}}
	})
	telemetry.ObserveIndex(meter, func() time.Duration { return time.Second })
	telemetry.NewJournalMetrics(meter).Appended(ctx, time.Second, failure)
	h := telemetry.NewWebhookMetrics(meter)
	h.Waiting(ctx, 1)
	h.Attempted(ctx, "_OTHER")
	for _, side := range []trace.SpanKind{trace.SpanKindClient, trace.SpanKindServer} { // they measure with the meter of the process
		_, call := telemetry.StartCallTool(ctx, side, "echo")
		call.End(ctx, failure, false)
		telemetry.StartMCPSession(ctx, side, "2025-11-25", "pipe")(failure)
	}
}

// catalogOf measures all, and reads what exporters get.
func catalogOf(t *testing.T) catalog {
	t.Helper()
	reader, registry := sdkmetric.NewManualReader(), prometheus.NewRegistry()
	scraped, err := otelprometheus.New(otelprometheus.WithRegisterer(registry))
	require.NoError(t, err)
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithReader(scraped))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.WithoutCancel(t.Context()))) })
	otel.SetMeterProvider(provider)
	measureAll(t.Context(), telemetry.Meter())
	all := catalog{metrics: map[string]map[string]bool{}, series: map[string]map[string]bool{}}
	var collected metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &collected))
	for _, scope := range collected.ScopeMetrics {
		for i := range scope.Metrics {
			all.metrics[scope.Metrics[i].Name] = attributesOf(scope.Metrics[i].Data)
		}
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		labels := map[string]bool{"instance": true, "job": true}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				labels[label.GetName()] = true
			}
		}
		name := family.GetName()
		if len(family.GetMetric()) == 0 || family.GetMetric()[0].GetHistogram() == nil {
			all.series[name] = labels
			continue
		}
		all.series[name+"_count"], all.series[name+"_sum"] = labels, labels
		all.series[name+"_bucket"] = maps.Clone(labels)
		all.series[name+"_bucket"]["le"] = true
	}
	return all
}

func attributesOf(data metricdata.Aggregation) map[string]bool {
	keys := map[string]bool{}
	add := func(set *attribute.Set) {
		for _, a := range set.ToSlice() {
			keys[string(a.Key)] = true
		}
	}
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			add(&p.Attributes)
		}
	case metricdata.Sum[float64]:
		for _, p := range data.DataPoints {
			add(&p.Attributes)
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			add(&p.Attributes)
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			add(&p.Attributes)
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			add(&p.Attributes)
		}
	}
	return keys
}

var (
	// metricName is a metric of this program, as OpenTelemetry has it; other names with dots are
	// those of attributes and events.
	metricName = regexp.MustCompile("`((?:toolfleet|gen_ai|mcp|messaging)\\.[a-z_.]+)`")
	// selector is a metric in PromQL, with its matchers.
	selector = regexp.MustCompile(`\b((?:toolfleet|gen_ai|mcp|messaging|target)_[a-z_]+|up\b)\b *(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring|group_left|group_right) *\(([^)]*)\)`)
	quoted   = regexp.MustCompile(`"[^"]*"`)
)

// check fails for a query that asks for a metric or a label that this program does not have.
func (c catalog) check(t *testing.T, where, query string) (used []string) {
	t.Helper()
	t.Helper()
	labels := map[string]bool{"le": true}
	plain := grouping.ReplaceAllString(query, " ")
	for _, found := range selector.FindAllStringSubmatch(plain, -1) {
		name, known := found[1], map[string]bool{"job": true, "instance": true}
		if name != "up" {
			if known = c.series[name]; known == nil {
				if found[0] == query && c.isLabel(name) || inMatchers(plain, name) {
					continue
				}
				t.Errorf("%s: there is no metric %s in %s", where, name, query)
				continue
			}
			used = append(used, name)
		}
		for _, m := range matcher.FindAllStringSubmatch(quoted.ReplaceAllString(found[2], ""), -1) {
			require.True(t, known[m[1]], "%s: %s has no label %s", where, name, m[1])
		}
		maps.Copy(labels, known)
	}
	for _, group := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(group[1], ",") {
			require.True(t, labels[strings.TrimSpace(label)], "%s: no metric of %s has a label %q", where, query, label)
		}
	}
	return used
}

func (c catalog) isLabel(name string) bool {
	for _, labels := range c.series {
		if labels[name] {
			return true
		}
	}
	return false
}

// inMatchers reports whether a name stands within the braces of a selector, as labels do.
func inMatchers(query, name string) bool {
	outside := regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(query, "")
	return !regexp.MustCompile(`\b` + name + `\b`).MatchString(outside)
}

func file(t *testing.T, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return content
}

// alert is a rule of alerts.yml.
type alert struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var rules struct {
		Groups []struct{ Rules []alert }
	}
	require.NoError(t, yaml.Unmarshal(file(t, "deploy/compose/alerts.yml"), &rules))
	for _, group := range rules.Groups {
		all = append(all, group.Rules...)
	}
	require.Greater(t, len(all), 10)
	return all
}

// expressions returns the queries of the board.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	var board any
	require.NoError(t, json.Unmarshal(file(t, "deploy/compose/grafana/toolfleet.json"), &board))
	var walk func(any)
	walk = func(tree any) {
		switch tree := tree.(type) {
		case []any:
			for _, element := range tree {
				walk(element)
			}
		case map[string]any:
			for key, value := range tree {
				if text, is := value.(string); is && key == "expr" && !strings.HasPrefix(text, "ALERTS") {
					all = append(all, text)
				}
				walk(value)
			}
		}
	}
	walk(board)
	require.Greater(t, len(all), 20)
	return all
}

// variables are those of Grafana, as Prometheus gets them.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$pool", ".*")

// TestMetrics_DocumentsBoardAndAlertsAgreeWithTheCode: what the board, the alert rules and the
// documents ask for is measured, with these labels, and the documents name all that is measured.
func TestMetrics_DocumentsBoardAndAlertsAgreeWithTheCode(t *testing.T) { //nolint:paralleltest // it replaces the meter of the process
	all := catalogOf(t)
	shown := map[string]bool{}
	for _, query := range expressions(t) {
		for _, name := range all.check(t, "board", variables.Replace(query)) {
			shown[name] = true
		}
	}
	for _, rule := range alerts(t) {
		require.True(t, len(all.check(t, rule.Alert, rule.Expr)) > 0 || strings.HasPrefix(rule.Expr, "up{"), rule.Alert)
		require.Contains(t, []string{"critical", "warning"}, rule.Labels["severity"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
	}
	documented := map[string]bool{}
	tables := string(file(t, "docs/operations/watch.md"))
	for _, found := range metricName.FindAllStringSubmatch(tables, -1) {
		documented[found[1]] = true
	}
	attributes := map[string]bool{}
	for name, keys := range all.metrics {
		require.True(t, documented[name], "docs/operations/watch.md does not name %s", name)
		for key := range keys {
			require.Contains(t, tables, "`"+key+"`", "docs/operations/watch.md does not name the attribute %s of %s", key, name)
			attributes[key] = true
		}
	}
	for name := range documented {
		_, measured := all.metrics[name]
		require.True(t, measured || attributes[name] || isOfTraces(name), "docs/operations/watch.md names %s, which the code has not", name)
	}
	for _, page := range []string{"docs/operations/watch.md", "docs/operations/questions.md"} {
		for _, query := range queries(string(file(t, page))) {
			all.check(t, page, query)
		}
	}
	for _, family := range slices.Sorted(maps.Keys(all.series)) { // what nobody looks at is not worth its series
		if name := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(family, "_bucket"), "_count"), "_sum"); name != "target_info" {
			require.True(t, slices.ContainsFunc(slices.Collect(maps.Keys(shown)), func(s string) bool { return strings.HasPrefix(s, name) }) ||
				slices.Contains(notShown, name), "the board does not show %s", name)
		}
	}
}

// notShown are the metrics that the board leaves out: others on it say nearly the same.
var notShown = []string{
	"toolfleet_call_duration_seconds", "gen_ai_client_inference_operation_input_tokens", "gen_ai_client_inference_operation_output_tokens",
	"mcp_server_operation_duration_seconds", "mcp_client_session_duration_seconds", "mcp_server_session_duration_seconds",
}

// TestMetrics_QuestionsAndAlertsAgree: the page of questions says what each alert means, and names
// no other.
func TestMetrics_QuestionsAndAlertsAgree(t *testing.T) {
	t.Parallel()
	var there, named []string
	for _, rule := range alerts(t) {
		there = append(there, rule.Alert)
	}
	for _, found := range regexp.MustCompile("`(Toolfleet[A-Za-z]+)`").FindAllStringSubmatch(string(file(t, "docs/operations/questions.md")), -1) {
		named = append(named, found[1])
	}
	slices.Sort(there)
	slices.Sort(named)
	require.Equal(t, there, slices.Compact(named))
	tested := string(file(t, "deploy/compose/alerts.test.yml"))
	for _, found := range regexp.MustCompile(`alertname: (\w+)`).FindAllStringSubmatch(tested, -1) {
		require.Contains(t, there, found[1])
	}
}

// queries are the codes of a page that name what Prometheus has.
func queries(page string) (all []string) {
	for _, found := range regexp.MustCompile("`([^`\n]+)`").FindAllStringSubmatch(page, -1) {
		if text := strings.ReplaceAll(found[1], `\|`, "|"); selector.MatchString(text) {
			all = append(all, text)
		}
	}
	return all
}

// isOfTraces reports whether a name is that of an event or an attribute of spans.
func isOfTraces(name string) bool {
	return name == telemetry.EventStarted || strings.HasPrefix(name, telemetry.KeyWait)
}
