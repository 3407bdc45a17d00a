package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
)

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

// Begun books a call that is about to be published; Ended or Left follows.
func (m *CallMetrics) Begun(ctx context.Context, pool string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, 1, with(KeyPool.String(pool)))
	}
}

// Sent books that a call was published. code is why it could not be, "" when it was.
func (m *CallMetrics) Sent(ctx context.Context, pool, code string) {
	if m.sent.Enabled(ctx) {
		m.sent.Add(ctx, 1, with(KeyMessagingSystem.String(MessagingNATS), KeyMessagingOperation.String(SpanPublish),
			KeyPool.String(pool), KeyErrorType.String(code)))
	}
}

// Ended books the result of a call. code is why it is not ok, "" when it is.
func (m *CallMetrics) Ended(ctx context.Context, pool, tool, status, code string, took time.Duration) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, took.Seconds(),
			with(KeyPool.String(pool), KeyGenAIToolName.String(tool), KeyStatus.String(status), KeyErrorType.String(code)))
	}
	m.Left(ctx, pool)
}

// Left books a call that is not waited for any more, though it has no result.
func (m *CallMetrics) Left(ctx context.Context, pool string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, -1, with(KeyPool.String(pool)))
	}
}
