package telemetry

import (
	"context"
	"slices"
	"time"

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

// CallMetrics are those of whoever has calls run and waits for their results. They are safe for
// concurrent use.
type CallMetrics struct {
	sent     metric.Int64Counter
	active   metric.Int64UpDownCounter
	duration metric.Float64Histogram
}

// NewCallMetrics makes the instruments of a caller.
func NewCallMetrics(meter metric.Meter) *CallMetrics {
	return &CallMetrics{
		sent:     newCounter(meter, MetricSentMessages, "{message}", "Calls that were published, or could not be."),
		active:   newUpDown(meter, MetricCallActive, "{call}", "Calls without a result that this process waits for."),
		duration: newDuration(meter, MetricCallDuration, "Time from the publishing of a call to its result here."),
	}
}

// Begun records a call that is about to be published; Ended or Left follows.
func (m *CallMetrics) Begun(ctx context.Context, pool string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, 1, with(KeyPool.String(pool)))
	}
}

// Sent records that a call was published. code is why it could not be, "" when it was.
func (m *CallMetrics) Sent(ctx context.Context, pool, code string) {
	if m.sent.Enabled(ctx) {
		m.sent.Add(ctx, 1, with(KeyMessagingSystem.String(MessagingNATS), KeyMessagingOperation.String(SpanPublish),
			KeyPool.String(pool), KeyErrorType.String(code)))
	}
}

// Ended records the result of a call. code is why it is not ok, "" when it is.
func (m *CallMetrics) Ended(ctx context.Context, pool, tool, status, code string, took time.Duration) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, took.Seconds(),
			with(KeyPool.String(pool), KeyGenAIToolName.String(tool), KeyStatus.String(status), KeyErrorType.String(code)))
	}
	m.Left(ctx, pool)
}

// Left records a call that is not waited for any more, though it has no result.
func (m *CallMetrics) Left(ctx context.Context, pool string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, -1, with(KeyPool.String(pool)))
	}
}

// TurnMetrics are those of whoever runs turns. They are safe for concurrent use.
type TurnMetrics struct{ duration metric.Float64Histogram }

// NewTurnMetrics makes the instruments of a runner of turns.
func NewTurnMetrics(meter metric.Meter) *TurnMetrics {
	return &TurnMetrics{duration: newDuration(meter, MetricInvokeAgent, "Time that this process has run a turn to its end.")}
}

// Ended records the end of a turn. code is why its outcome is not an answer, "" when it is.
func (m *TurnMetrics) Ended(ctx context.Context, model, outcome, code string, took time.Duration) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, took.Seconds(), with(KeyGenAIRequestModel.String(model), KeyOutcome.String(outcome), KeyErrorType.String(code)))
	}
}

// ModelMetrics are those of one model. They are safe for concurrent use.
type ModelMetrics struct {
	duration metric.Float64Histogram
	tokens   metric.Int64Histogram
	model    []attribute.KeyValue
}

// NewModelMetrics makes the instruments of a model, as it is named on the command line, of a
// provider.
func NewModelMetrics(meter metric.Meter, provider, model string) *ModelMetrics {
	return &ModelMetrics{
		duration: newDuration(meter, MetricModelDuration, "Time that a model took for a reply, with its retries."),
		tokens: made(meter.Int64Histogram(MetricModelTokens, metric.WithUnit("{token}"), metric.WithDescription("Tokens of a reply of a model."),
			metric.WithExplicitBucketBoundaries(tokenBuckets()...))),
		model: []attribute.KeyValue{
			KeyGenAIOperation.String(OperationChat), KeyGenAIProvider.String(provider), KeyGenAIRequestModel.String(model),
		},
	}
}

// Replied records a reply, or the err in its place. Tokens that the model has not told are 0.
func (m *ModelMetrics) Replied(ctx context.Context, took time.Duration, input, output int64, err error) {
	if !m.duration.Enabled(ctx) {
		return
	}
	if err != nil {
		m.duration.Record(ctx, took.Seconds(), with(append(slices.Clip(m.model), KeyErrorType.String(ErrorType(err)))...))
		return
	}
	m.duration.Record(ctx, took.Seconds(), with(m.model...))
	for kind, tokens := range map[string]int64{"input": input, "output": output} {
		if tokens > 0 {
			m.tokens.Record(ctx, tokens, with(append(slices.Clip(m.model), KeyGenAITokenType.String(kind))...))
		}
	}
}

// tokenBuckets are the bounds of tokens that the conventions want.
func tokenBuckets() []float64 {
	return []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
}
