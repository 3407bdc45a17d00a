package telemetry

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
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

// Executed records an attempt that ended here. code is why it is not ok, "" when it is.
func (m *WorkerMetrics) Executed(ctx context.Context, tool, code string, took time.Duration) {
	if m.executed.Enabled(ctx) {
		m.executed.Record(ctx, took.Seconds(), with(KeyPool.String(m.pool), KeyGenAIToolName.String(tool), KeyErrorType.String(code)))
	}
}

// Opened records a sandbox that was opened, or that could not be, for err.
func (m *WorkerMetrics) Opened(ctx context.Context, took time.Duration, err error) {
	if err != nil {
		m.opens.Record(ctx, took.Seconds(), with(KeySandboxDriver.String(m.driver), KeySandboxLevel.String(m.level), KeyErrorType.String(ErrorType(err))))
		return
	}
	m.opens.Record(ctx, took.Seconds(), m.ofDriver)
	m.sandboxes.Add(ctx, 1, m.ofDriver)
}

// Closed records that a sandbox was closed.
func (m *WorkerMetrics) Closed(ctx context.Context) { m.sandboxes.Add(ctx, -1, m.ofDriver) }

// CommandEnded records why a command ended.
func (m *WorkerMetrics) CommandEnded(ctx context.Context, reason string) {
	if m.commands.Enabled(ctx) {
		m.commands.Add(ctx, 1, with(KeySandboxDriver.String(m.driver), KeySandboxLevel.String(m.level), KeyReason.String(reason)))
	}
}

// HolderMetrics are those of a process that holds lanes of a pool: of a worker, and of a
// coordinator, whose lanes are sessions. They are safe for concurrent use.
type HolderMetrics struct {
	meter                 metric.Meter
	pool                  string
	ofPool                metric.MeasurementOption
	ended, repeated, lost metric.Int64Counter
	queueTime, laneTime   metric.Float64Histogram
	lanes, usage, limit   metric.Int64ObservableUpDownCounter
}

// NewHolderMetrics makes the instruments of a holder of lanes of pool.
func NewHolderMetrics(meter metric.Meter, pool string) *HolderMetrics {
	return &HolderMetrics{
		meter: meter, pool: pool, ofPool: with(KeyPool.String(pool)),
		ended:     newCounter(meter, MetricCallEnded, "{call}", "Calls whose result this process has stored, run or not."),
		repeated:  newCounter(meter, MetricCallRepeated, "{attempt}", "Attempts that were begun here after another one was lost."),
		lost:      newCounter(meter, MetricLeaseLost, "{lease}", "Lanes that were lost while they were held."),
		queueTime: newDuration(meter, MetricQueueTime, "Time from the acceptance of a call to its start here."),
		laneTime:  newDuration(meter, MetricLaneTime, "The part of the queue time after the call's lane was claimed."),
		lanes:     newGauge(meter, MetricLaneHeld, "{lane}", "Lanes that are held, idle ones included."),
		usage:     newGauge(meter, MetricSlotUsage, "{slot}", "Slots in use."),
		limit:     newGauge(meter, MetricSlotLimit, "{slot}", "Slots that there are: calls that may run at once."),
	}
}

// Started records an attempt, from 1, as it begins: queued is how long the call has waited, and
// inLane the part of it after its lane was claimed.
func (m *HolderMetrics) Started(ctx context.Context, tool string, attempt int, queued, inLane time.Duration) {
	if !m.queueTime.Enabled(ctx) {
		return
	}
	if attempt > 1 {
		m.repeated.Add(ctx, 1, with(KeyPool.String(m.pool), KeyGenAIToolName.String(tool)))
	}
	m.queueTime.Record(ctx, queued.Seconds(), m.ofPool)
	m.laneTime.Record(ctx, inLane.Seconds(), m.ofPool)
}

// Ended records a call whose result is stored. code is why it is not ok, "" when it is.
func (m *HolderMetrics) Ended(ctx context.Context, tool, status, code string) {
	if m.ended.Enabled(ctx) {
		m.ended.Add(ctx, 1, with(KeyPool.String(m.pool), KeyGenAIToolName.String(tool), KeyStatus.String(status), KeyErrorType.String(code)))
	}
}

// Lost records a lane that was lost.
func (m *HolderMetrics) Lost(ctx context.Context) { m.lost.Add(ctx, 1, m.ofPool) }

// Observe asks load, whenever metrics are read, how many lanes are held, and how many slots are in
// use of how many, until the returned function is called. Lost lanes are counted from 0: to
// Prometheus a counter that comes with its first count has not increased.
func (m *HolderMetrics) Observe(ctx context.Context, load func() (lanes, used, slots int)) (stop func()) {
	m.lost.Add(ctx, 0, m.ofPool)
	registered, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		lanes, used, slots := load()
		o.ObserveInt64(m.lanes, int64(lanes), m.ofPool)
		o.ObserveInt64(m.usage, int64(used), m.ofPool)
		o.ObserveInt64(m.limit, int64(slots), m.ofPool)
		return nil
	}, m.lanes, m.usage, m.limit)
	if err != nil {
		otel.Handle(err)
		return func() {}
	}
	return func() { _ = registered.Unregister() } // never fails in the SDK
}
