package telemetry

import (
	"context"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// TurnMetrics are those of whoever runs turns. They are safe for concurrent use.
type TurnMetrics struct{ duration metric.Float64Histogram }

// NewTurnMetrics makes the instruments of a runner of turns.
func NewTurnMetrics(meter metric.Meter) *TurnMetrics {
	return &TurnMetrics{duration: newDuration(meter, MetricInvokeAgent, "Time that this process has run a turn to its end.")}
}

// Ended books the end of a turn. code is why its outcome is not an answer, "" when it is.
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

// Replied books a reply, or the err in its place. Tokens that the model has not told are 0.
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
