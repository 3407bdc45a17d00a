package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// WorkerMetrics are those of a worker: of a holder, and what it executes in which sandboxes. They
// are safe for concurrent use.
type WorkerMetrics struct {
	*HolderMetrics

	driver, level   string
	ofDriver        metric.MeasurementOption
	executed, opens metric.Float64Histogram
	sandboxes       metric.Int64UpDownCounter
	commands        metric.Int64Counter
}

// NewWorkerMetrics makes the instruments of a worker whose sandboxes are of a driver and a proven
// level.
func NewWorkerMetrics(meter metric.Meter, pool, driver, level string) *WorkerMetrics {
	return &WorkerMetrics{
		HolderMetrics: NewHolderMetrics(meter, pool), driver: driver, level: level,
		ofDriver:  with(KeySandboxDriver.String(driver), KeySandboxLevel.String(level)),
		executed:  newDuration(meter, MetricExecuteTool, "Time that an attempt of a call ran."),
		opens:     newDuration(meter, MetricSandboxOpening, "Time to open a sandbox."),
		sandboxes: newUpDown(meter, MetricSandboxCount, "{sandbox}", "Sandboxes that are open."),
		commands:  newCounter(meter, MetricCommandEnded, "{command}", "Commands that ended in sandboxes."),
	}
}

// Executed books an attempt that ended here. code is why it is not ok, "" when it is.
func (m *WorkerMetrics) Executed(ctx context.Context, tool, code string, took time.Duration) {
	if m.executed.Enabled(ctx) {
		m.executed.Record(ctx, took.Seconds(), with(KeyPool.String(m.pool), KeyGenAIToolName.String(tool), KeyErrorType.String(code)))
	}
}

// Opened books a sandbox that was opened, or that could not be, for err.
func (m *WorkerMetrics) Opened(ctx context.Context, took time.Duration, err error) {
	if err != nil {
		m.opens.Record(ctx, took.Seconds(), with(KeySandboxDriver.String(m.driver), KeySandboxLevel.String(m.level), KeyErrorType.String(ErrorType(err))))
		return
	}
	m.opens.Record(ctx, took.Seconds(), m.ofDriver)
	m.sandboxes.Add(ctx, 1, m.ofDriver)
}

// Closed books that a sandbox was closed.
func (m *WorkerMetrics) Closed(ctx context.Context) { m.sandboxes.Add(ctx, -1, m.ofDriver) }

// CommandEnded books why a command ended.
func (m *WorkerMetrics) CommandEnded(ctx context.Context, reason string) {
	if m.commands.Enabled(ctx) {
		m.commands.Add(ctx, 1, with(KeySandboxDriver.String(m.driver), KeySandboxLevel.String(m.level), KeyReason.String(reason)))
	}
}
