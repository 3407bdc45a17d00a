package worker_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// meter collects the metrics of a worker.
type meter struct{ *sdkmetric.ManualReader }

// newMeter is told to a worker by its options.
func newMeter() (m meter, provider *sdkmetric.MeterProvider) {
	m = meter{sdkmetric.NewManualReader()}
	return m, sdkmetric.NewMeterProvider(sdkmetric.WithReader(m))
}

// read returns the values of a metric by its attributes, as in "toolfleet.pool=default"; of
// histograms how often they were recorded.
func (m meter) read(t *testing.T, name string) map[string]int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, m.Collect(t.Context(), &all))
	values := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, metric := range scope.Metrics {
			if metric.Name != name {
				continue
			}
			switch data := metric.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[words(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					values[words(p.Attributes)] = int64(p.Count)
				}
			}
		}
	}
	return values
}

func words(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }

// TestMetrics_TellWhatWasDone counts calls that ran, one way or the other, and one that was not run.
func TestMetrics_TellWhatWasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m, provider := newMeter()
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	o := r.options()
	o.Meter, o.Slots, o.Linger = provider.Meter("test"), 3, patience
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "true"}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "exit 3"}))
	requireFault(t, r.do(session, protocol.CommandRun{Command: "sleep 60", Limits: protocol.Limits{Wall: 1}}), protocol.StatusTimeout, protocol.CodeRunTimeout)
	requireFault(t, r.do(session, protocol.FilesRead{Path: "missing"}), protocol.StatusFailed, protocol.CodeNotFound)
	refused := newCall(session, protocol.Noop{})
	refused.MinLevel = sandbox.LevelFull.String()
	requireFault(t, r.dispatch(t.Context(), refused), protocol.StatusRejected, protocol.CodeSandboxLevel)

	const test, none = "gen_ai.tool.name=test", "toolfleet.sandbox.driver=process,toolfleet.sandbox.level=none"
	const pool = "toolfleet.pool=default"
	require.Equal(t, map[string]int64{pool: 3}, m.read(t, telemetry.MetricSlotLimit))
	require.Equal(t, map[string]int64{pool: 1}, m.read(t, telemetry.MetricLaneHeld), "it lingers")
	require.Equal(t, map[string]int64{none: 1}, m.read(t, telemetry.MetricSandboxCount))

	stop() // what was counted just behind the last result is there now
	require.Equal(t, map[string]int64{
		test + "," + pool + ",toolfleet.status=ok":                                     2,
		"error.type=run_timeout," + test + "," + pool + ",toolfleet.status=timeout":    1,
		"error.type=not_found," + test + "," + pool + ",toolfleet.status=failed":       1,
		"error.type=sandbox_level," + test + "," + pool + ",toolfleet.status=rejected": 1,
	}, m.read(t, telemetry.MetricCallEnded))
	require.Equal(t, map[string]int64{
		test + "," + pool: 2, "error.type=run_timeout," + test + "," + pool: 1, "error.type=not_found," + test + "," + pool: 1,
		"error.type=sandbox_level," + test + "," + pool: 1,
	}, m.read(t, telemetry.MetricExecuteTool))
	require.Equal(t, map[string]int64{pool: 5}, m.read(t, telemetry.MetricQueueTime))
	require.Equal(t, map[string]int64{pool: 5}, m.read(t, telemetry.MetricLaneTime))
	require.Equal(t, map[string]int64{none: 2}, m.read(t, telemetry.MetricSandboxOpening), "one looked for languages")
	require.Equal(t, map[string]int64{
		"toolfleet.reason=exited," + none: 3, "toolfleet.reason=timeout," + none: 1,
	}, m.read(t, telemetry.MetricCommandEnded), "one looked for languages")
	require.Empty(t, m.read(t, telemetry.MetricCallRepeated))
	require.Empty(t, m.read(t, telemetry.MetricLeaseLost))
	require.Equal(t, map[string]int64{none: 0}, m.read(t, telemetry.MetricSandboxCount))
	require.Empty(t, m.read(t, telemetry.MetricSlotLimit), "a worker that has ended tells nothing")
}
