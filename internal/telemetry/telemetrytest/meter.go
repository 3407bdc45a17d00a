package telemetrytest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// Meter makes instruments whose values can be read. It is safe for concurrent use.
type Meter struct {
	metric.Meter

	provider *sdkmetric.MeterProvider
	reader   *sdkmetric.ManualReader
}

// Install makes it the meter of all that this process measures from now on.
func (m *Meter) Install() { otel.SetMeterProvider(m.provider) }

// NewMeter makes a meter; the test's end stops it.
func NewMeter(tb testing.TB) *Meter {
	tb.Helper()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	tb.Cleanup(func() { require.NoError(tb, provider.Shutdown(context.Background())) })
	return &Meter{Meter: provider.Meter("test"), provider: provider, reader: reader}
}

// Read returns the values of a metric by its attributes, in the order of their keys, as in
// "error.type=timeout,toolfleet.pool=default"; of histograms how often they were recorded.
func (m *Meter) Read(tb testing.TB, name string) map[string]int64 {
	tb.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(tb, m.reader.Collect(context.WithoutCancel(tb.Context()), &all))
	values := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for i := range scope.Metrics {
			if scope.Metrics[i].Name == name {
				add(values, scope.Metrics[i].Data)
			}
		}
	}
	return values
}

func add(values map[string]int64, data metricdata.Aggregation) {
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			values[words(p.Attributes)] = p.Value
		}
	case metricdata.Histogram[int64]:
		for _, p := range data.DataPoints {
			values[words(p.Attributes)] = int64(p.Count)
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			values[words(p.Attributes)] = int64(p.Count)
		}
	}
}

func words(set attribute.Set) string { return set.Encoded(attribute.DefaultEncoder()) }
