package telemetry

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Names of metrics: those of the conventions where there is one. Durations are in seconds.
const (
	MetricExecuteTool    = "gen_ai.execute_tool.duration"
	MetricInvokeAgent    = "gen_ai.invoke_agent.duration"
	MetricModelDuration  = "gen_ai.client.operation.duration"
	MetricModelTokens    = "gen_ai.client.token.usage" //nolint:gosec // no credential
	MetricSentMessages   = "messaging.client.sent.messages"
	MetricCallDuration   = "toolfleet.call.duration"
	MetricCallActive     = "toolfleet.call.active"
	MetricCallEnded      = "toolfleet.call.ended"
	MetricCallRepeated   = "toolfleet.call.repeated"
	MetricQueueTime      = "toolfleet.call.queue_time"
	MetricLaneTime       = "toolfleet.call.lane_time"
	MetricLaneHeld       = "toolfleet.lane.held"
	MetricLeaseLost      = "toolfleet.lease.lost"
	MetricSlotLimit      = "toolfleet.slot.limit"
	MetricSlotUsage      = "toolfleet.slot.usage"
	MetricSandboxCount   = "toolfleet.sandbox.count"
	MetricSandboxOpening = "toolfleet.sandbox.open_time"
	MetricCommandEnded   = "toolfleet.command.ended"
)

// maxSeries bounds the combinations of attributes that an instrument keeps apart. What comes beyond
// them is counted together, with the attribute otel.metric.overflow: names of tools are
// chosen by whoever may send calls.
const maxSeries = 1000

// durationBuckets are the bounds of durations in seconds, from a call that does nothing to a long
// build.
func durationBuckets() []float64 {
	return []float64{
		0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600,
	}
}

// made reports why an instrument could not be made, which then does nothing.
func made[T any](instrument T, err error) T {
	if err != nil {
		otel.Handle(err)
	}
	return instrument
}

func newCounter(meter metric.Meter, name, unit, is string) metric.Int64Counter {
	return made(meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(is)))
}

func newGauge(meter metric.Meter, name, unit, is string) metric.Int64ObservableUpDownCounter {
	return made(meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(is)))
}

func newUpDown(meter metric.Meter, name, unit, is string) metric.Int64UpDownCounter {
	return made(meter.Int64UpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(is)))
}

func newDuration(meter metric.Meter, name, is string) metric.Float64Histogram {
	return made(meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(is),
		metric.WithExplicitBucketBoundaries(durationBuckets()...)))
}

// with makes the attributes of a measurement; those without a value are left out.
func with(attributes ...attribute.KeyValue) metric.MeasurementOption {
	set := make([]attribute.KeyValue, 0, len(attributes))
	for _, a := range attributes {
		if a.Value.AsString() != "" {
			set = append(set, a)
		}
	}
	return metric.WithAttributeSet(attribute.NewSet(set...))
}
