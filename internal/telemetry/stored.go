package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
)

// Stored is what a fleet has at its servers.
type Stored struct {
	Streams []Stream
	Waiting map[string]int64 // lanes that no worker has claimed yet, by pool
}

// Stream is the state of a stream. Pool is "", or the pool whose account it is in; Limit is 0 for a
// stream without one.
type Stream struct {
	Name, Pool             string
	Messages, Bytes, Limit int64
}

// readTimeout bounds how long the servers are asked when metrics are read.
const readTimeout = 3 * time.Second

// ObserveStored asks read, whenever metrics are read, what the servers of a fleet have, until the
// returned function is called. What read does not get from them is left out.
func ObserveStored(meter metric.Meter, read func(context.Context) Stored) (stop func()) {
	messages := newGauge(meter, MetricStreamMessages, "{message}", "Messages of a stream.")
	size := newGauge(meter, MetricStreamSize, "By", "Size of a stream.")
	limit := newGauge(meter, MetricStreamLimit, "By", "Largest size of a stream that has a limit.")
	waiting := newGauge(meter, MetricLaneWaiting, "{lane}", "Lanes with calls that no worker has claimed yet.")
	return observe(meter, func(ctx context.Context, o metric.Observer) {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		stored := read(ctx)
		for _, s := range stored.Streams {
			of := with(KeyStream.String(s.Name), KeyPool.String(s.Pool))
			o.ObserveInt64(messages, s.Messages, of)
			o.ObserveInt64(size, s.Bytes, of)
			if s.Limit > 0 {
				o.ObserveInt64(limit, s.Limit, of)
			}
		}
		for pool, lanes := range stored.Waiting {
			o.ObserveInt64(waiting, lanes, with(KeyPool.String(pool)))
		}
	}, messages, size, limit, waiting)
}

// ObserveIndex asks delay, whenever metrics are read, since when the index of sessions and calls
// has not been up to date, until the returned function is called.
func ObserveIndex(meter metric.Meter, delay func() time.Duration) (stop func()) {
	gauge := made(meter.Float64ObservableGauge(MetricIndexDelay, metric.WithUnit("s"),
		metric.WithDescription("Time since the index of sessions and calls was up to date.")))
	return observe(meter, func(_ context.Context, o metric.Observer) { o.ObserveFloat64(gauge, delay().Seconds()) }, gauge)
}

// observe calls report whenever metrics are read.
func observe(meter metric.Meter, report func(context.Context, metric.Observer), instruments ...metric.Observable) (stop func()) {
	registered, err := meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		report(ctx, o)
		return nil
	}, instruments...)
	if err != nil {
		otel.Handle(err)
		return func() {}
	}
	return func() { _ = registered.Unregister() } // never fails in the SDK
}

// JournalMetrics are the metrics of journals. They are safe for concurrent use.
type JournalMetrics struct{ appends metric.Float64Histogram }

// NewJournalMetrics makes the instruments of a journal.
func NewJournalMetrics(meter metric.Meter) *JournalMetrics {
	return &JournalMetrics{newDuration(meter, MetricJournalAppend, "Time until a message of a session's journal was stored.")}
}

// Appended records a message that was stored, or that could not be, for err.
func (m *JournalMetrics) Appended(ctx context.Context, took time.Duration, err error) {
	if !m.appends.Enabled(ctx) {
		return
	}
	kind := ""
	if err != nil {
		kind = ErrorType(err)
	}
	m.appends.Record(ctx, took.Seconds(), with(KeyErrorType.String(kind)))
}

// WebhookMetrics are the metrics of what sends to webhooks. They are safe for concurrent use.
type WebhookMetrics struct {
	waiting  metric.Int64UpDownCounter
	attempts metric.Int64Counter
}

// NewWebhookMetrics makes the instruments of a sender.
func NewWebhookMetrics(meter metric.Meter) *WebhookMetrics {
	return &WebhookMetrics{
		waiting:  newUpDown(meter, MetricWebhookWaiting, "{delivery}", "Deliveries that wait for their next attempt, of webhooks that are not paused."),
		attempts: newCounter(meter, MetricWebhookAttempt, "{attempt}", "Attempts to deliver an event."),
	}
}

// Waiting records that of one webhook more deliveries wait, or fewer.
func (m *WebhookMetrics) Waiting(ctx context.Context, more int64) { m.waiting.Add(ctx, more) }

// Attempted records an attempt. kind is why it has failed, "" when it has not.
func (m *WebhookMetrics) Attempted(ctx context.Context, kind string) {
	m.attempts.Add(ctx, 1, with(KeyErrorType.String(kind)))
}
