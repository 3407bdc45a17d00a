package telemetry

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
)

// Names of metrics, in addition to package genaiconv. Durations are in seconds.
const (
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
	MetricCallWait       = "toolfleet.call.wait"
	MetricWorkerLost     = "toolfleet.worker.lost"
	MetricLaneWaiting    = "toolfleet.lane.waiting"
	MetricStreamMessages = "toolfleet.stream.messages"
	MetricStreamSize     = "toolfleet.stream.size"
	MetricStreamLimit    = "toolfleet.stream.limit"
	MetricModelWait      = "toolfleet.model.wait"
	MetricTurnCost       = "toolfleet.turn.cost"
	MetricJournalAppend  = "toolfleet.journal.append_time"
	MetricIndexDelay     = "toolfleet.index.delay"
	MetricWebhookWaiting = "toolfleet.webhook.waiting"
	MetricWebhookAttempt = "toolfleet.webhook.attempt"
)

// maxSeries bounds the combinations of attributes that an instrument keeps apart. What comes beyond
// them is counted together, with the attribute otel.metric.overflow: names of tools are
// chosen by callers.
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

func newSum(meter metric.Meter, name, unit, is string) metric.Float64Counter {
	return made(meter.Float64Counter(name, metric.WithUnit(unit), metric.WithDescription(is)))
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

// CallMetrics are the metrics of callers, which wait for results. They are safe for
// concurrent use.
type CallMetrics struct {
	sent     metric.Int64Counter
	active   metric.Int64UpDownCounter
	duration metric.Float64Histogram
	tenants
}

// maxTenants bounds the tenants that metrics of a process name: the first ones. The rest is
// "other".
const maxTenants = 20

// tenants are those that have a name in metrics.
type tenants struct {
	mu    sync.Mutex
	named map[string]bool
}

// tenant is the attribute of a tenant; "" has none.
func (t *tenants) tenant(name string) attribute.KeyValue {
	t.mu.Lock()
	defer t.mu.Unlock()
	if name != "" && !t.named[name] {
		if len(t.named) >= maxTenants {
			return KeyTenant.String("other")
		}
		if t.named == nil {
			t.named = map[string]bool{}
		}
		t.named[name] = true
	}
	return KeyTenant.String(name)
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
func (m *CallMetrics) Begun(ctx context.Context, pool, tenant string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, 1, with(KeyPool.String(pool), m.tenant(tenant)))
	}
}

// Sent records that a call was published. code is why it could not be, "" when it was.
func (m *CallMetrics) Sent(ctx context.Context, pool, tenant, code string) {
	if m.sent.Enabled(ctx) {
		m.sent.Add(ctx, 1, with(KeyMessagingSystem.String(MessagingNATS), KeyMessagingOperation.String(SpanPublish),
			KeyPool.String(pool), m.tenant(tenant), KeyErrorType.String(code)))
	}
}

// Ended records the result of a call. code is why it is not ok, "" when it is.
func (m *CallMetrics) Ended(ctx context.Context, pool, tenant, tool, status, code string, took time.Duration) {
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, took.Seconds(),
			with(KeyPool.String(pool), m.tenant(tenant), genaiconv.ToolName.String(tool), KeyStatus.String(status), KeyErrorType.String(code)))
	}
	m.Left(ctx, pool, tenant)
}

// Left records a call that is not waited for any more, though it has no result.
func (m *CallMetrics) Left(ctx context.Context, pool, tenant string) {
	if m.active.Enabled(ctx) {
		m.active.Add(ctx, -1, with(KeyPool.String(pool), m.tenant(tenant)))
	}
}

// TurnMetrics are the metrics of coordinators, which run turns. They are safe for concurrent use.
type TurnMetrics struct {
	duration metric.Float64Histogram
	cost     metric.Float64Counter
}

// NewTurnMetrics makes the instruments of a runner of turns.
func NewTurnMetrics(meter metric.Meter) *TurnMetrics {
	return &TurnMetrics{
		duration: newDuration(meter, genaiconv.MetricAgent, "Time that this process has run a turn to its end."),
		cost:     newSum(meter, MetricTurnCost, "{USD}", "Cost of turns that ended here, with their sub-agents, where the prices of their models are known."),
	}
}

// Ended records the end of a turn. code is why its outcome is not an answer, "" when it is. cost is
// in US dollars; nil when it is unknown.
func (m *TurnMetrics) Ended(ctx context.Context, model, outcome, code string, cost *float64, took time.Duration) {
	if cost != nil && *cost > 0 {
		m.cost.Add(ctx, *cost, with(genaiconv.RequestModel.String(model)))
	}
	if m.duration.Enabled(ctx) {
		m.duration.Record(ctx, took.Seconds(), with(genaiconv.RequestModel.String(model), KeyOutcome.String(outcome), KeyErrorType.String(code)))
	}
}

// ModelMetrics are the metrics of one model. They are safe for concurrent use.
type ModelMetrics struct {
	duration, first                  metric.Float64Histogram
	wait                             metric.Float64Counter
	input, output, cached, reasoning metric.Int64Counter
	replyInput, replyOutput          metric.Int64Histogram
	model                            []attribute.KeyValue
}

// NewModelMetrics makes the instruments of a model, as it is named on the command line, of a
// provider.
func NewModelMetrics(meter metric.Meter, provider, model string) *ModelMetrics {
	tokens := func(name, is string) metric.Int64Histogram {
		return made(meter.Int64Histogram(name, metric.WithUnit("{token}"), metric.WithDescription(is),
			metric.WithExplicitBucketBoundaries(tokenBuckets()...)))
	}
	return &ModelMetrics{
		duration:    newDuration(meter, genaiconv.MetricModel, "Time that a model took for a reply, with its retries."),
		wait:        newSum(meter, MetricModelWait, "s", "Time that requests waited for the limits of their provider."),
		first:       newDuration(meter, genaiconv.MetricFirstChunk, "Time to the first piece of a reply."),
		input:       newCounter(meter, genaiconv.MetricInputTokens, "{token}", "Input tokens, with those from a cache."),
		output:      newCounter(meter, genaiconv.MetricOutputTokens, "{token}", "Output tokens, with those of reasoning."),
		cached:      newCounter(meter, genaiconv.MetricCacheReadTokens, "{token}", "Input tokens from a cache of the provider."),
		reasoning:   newCounter(meter, genaiconv.MetricReasoningTokens, "{token}", "Output tokens of reasoning."),
		replyInput:  tokens(genaiconv.MetricReplyInput, "Input tokens of a reply."),
		replyOutput: tokens(genaiconv.MetricReplyOutput, "Output tokens of a reply."),
		model: []attribute.KeyValue{
			genaiconv.Operation.String(genaiconv.OperationChat), genaiconv.Provider.String(provider), genaiconv.RequestModel.String(model),
		},
	}
}

// Waited records how long a request waited for the limits of its provider.
func (m *ModelMetrics) Waited(ctx context.Context, took time.Duration) {
	if m.wait.Enabled(ctx) {
		m.wait.Add(ctx, took.Seconds(), with(m.model...))
	}
}

// Tokens are the tokens of a reply; 0 where the model has not reported them.
type Tokens struct{ Input, Output, Cached, Reasoning int64 }

// Replied records a reply, or the err in its place. first is when its first piece came; 0 if none.
func (m *ModelMetrics) Replied(ctx context.Context, took, first time.Duration, t Tokens, err error) {
	if !m.duration.Enabled(ctx) {
		return
	}
	if err != nil {
		m.duration.Record(ctx, took.Seconds(), with(append(slices.Clip(m.model), KeyErrorType.String(ErrorType(err)))...))
		return
	}
	m.duration.Record(ctx, took.Seconds(), with(m.model...))
	if first > 0 {
		m.first.Record(ctx, first.Seconds(), with(m.model...))
	}
	counted := with(append(slices.Clip(m.model), genaiconv.TokenModality.String(genaiconv.ModalityUnknown))...)
	for counter, tokens := range map[metric.Int64Counter]int64{m.input: t.Input, m.output: t.Output, m.cached: t.Cached, m.reasoning: t.Reasoning} {
		if tokens > 0 {
			counter.Add(ctx, tokens, counted)
		}
	}
	if t.Input > 0 || t.Output > 0 {
		m.replyInput.Record(ctx, t.Input, with(m.model...))
		m.replyOutput.Record(ctx, t.Output, with(m.model...))
	}
}

// tokenBuckets are the bounds of tokens that the conventions want.
func tokenBuckets() []float64 {
	return []float64{1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864}
}

// CallTool is the call of a tool of an MCP server, on one of its sides.
type CallTool struct {
	span   trace.Span
	begun  time.Time
	metric string
	tool   string
}

// StartCallTool starts the span of a call of a tool of an MCP server; "" is an unknown tool.
func StartCallTool(ctx context.Context, side trace.SpanKind, tool string) (context.Context, *CallTool) {
	name, attributes := genaiconv.MethodCallTool, []attribute.KeyValue{
		genaiconv.MCPMethod.String(genaiconv.MethodCallTool), genaiconv.Operation.String(genaiconv.OperationTool),
	}
	if tool != "" {
		name, attributes = SpanCallTool(tool), append(attributes, genaiconv.ToolName.String(tool))
	}
	c := &CallTool{begun: time.Now(), tool: tool, metric: genaiconv.MetricMCPClient}
	if side == trace.SpanKindServer {
		c.metric = genaiconv.MetricMCPServer
	}
	ctx, c.span = Tracer().Start(ctx, name, trace.WithSpanKind(side), trace.WithAttributes(attributes...)) //nolint:spancheck // End ends it
	return ctx, c
}

// End ends the span and records how long the call took. err is why there is no result; failed
// reports that the tool failed.
func (c *CallTool) End(ctx context.Context, err error, failed bool) {
	defer c.span.End()
	kind := ""
	if err != nil {
		kind = ErrorType(err)
	} else if failed {
		kind = TypeTool
	}
	if kind != "" {
		FailAs(c.span, kind)
	}
	duration := newDuration(Meter(), c.metric, "Time of a request of MCP to its answer.")
	duration.Record(ctx, time.Since(c.begun).Seconds(),
		with(genaiconv.MCPMethod.String(genaiconv.MethodCallTool),
			genaiconv.Operation.String(genaiconv.OperationTool), genaiconv.ToolName.String(c.tool),
			KeyErrorType.String(kind)))
}

// StartMCPSession measures a session of MCP on one of its sides, from now until ended is called
// with the error by which it ended.
func StartMCPSession(ctx context.Context, side trace.SpanKind, version, transport string) (ended func(error)) {
	ctx, begun, name := context.WithoutCancel(ctx), time.Now(), genaiconv.MetricMCPClientSession
	if side == trace.SpanKindServer {
		name = genaiconv.MetricMCPServerSession
	}
	return func(err error) {
		kind := ""
		if err != nil {
			kind = ErrorType(err)
		}
		newDuration(Meter(), name, "Time of a session of MCP.").Record(ctx, time.Since(begun).Seconds(),
			with(genaiconv.MCPProtocolVersion.String(version), genaiconv.NetworkTransport.String(transport), KeyErrorType.String(kind)))
	}
}

// WorkerMetrics are the metrics of a worker: of a holder, and what it executes in which sandboxes.
// They are safe for concurrent use.
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
		executed:  newDuration(meter, genaiconv.MetricTool, "Time that an attempt of a call ran."),
		opens:     newDuration(meter, MetricSandboxOpening, "Time to open a sandbox."),
		sandboxes: newUpDown(meter, MetricSandboxCount, "{sandbox}", "Sandboxes that are open."),
		commands:  newCounter(meter, MetricCommandEnded, "{command}", "Commands that ended in sandboxes."),
	}
}

// Executed records an attempt that ended here. code is why it is not ok, "" when it is.
func (m *WorkerMetrics) Executed(ctx context.Context, tool, code string, took time.Duration) {
	if m.executed.Enabled(ctx) {
		m.executed.Record(ctx, took.Seconds(), with(KeyPool.String(m.pool), genaiconv.ToolName.String(tool), KeyErrorType.String(code)))
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

// HolderMetrics are the metrics of a process that holds lanes of a pool: of a worker, and of a
// coordinator, whose lanes are sessions. They are safe for concurrent use.
type HolderMetrics struct {
	meter                 metric.Meter
	pool                  string
	ofPool                metric.MeasurementOption
	ended, repeated, lost metric.Int64Counter
	workersLost           metric.Int64Counter
	wait                  metric.Float64Counter
	queueTime, laneTime   metric.Float64Histogram
	lanes, usage, limit   metric.Int64ObservableUpDownCounter
	tenants
}

// NewHolderMetrics makes the instruments of a holder of lanes of pool.
func NewHolderMetrics(meter metric.Meter, pool string) *HolderMetrics {
	return &HolderMetrics{
		meter: meter, pool: pool, ofPool: with(KeyPool.String(pool)),
		ended:       newCounter(meter, MetricCallEnded, "{call}", "Calls whose result this process has stored, run or not."),
		repeated:    newCounter(meter, MetricCallRepeated, "{attempt}", "Attempts that were begun here after another one was lost."),
		lost:        newCounter(meter, MetricLeaseLost, "{lease}", "Lanes that were lost while they were held."),
		workersLost: newCounter(meter, MetricWorkerLost, "{worker}", "Workers that were lost without a drain, as this process found."),
		wait:        newSum(meter, MetricCallWait, "s", "Time that calls whose result this process has stored had waited, by reason."),
		queueTime:   newDuration(meter, MetricQueueTime, "Time from the acceptance of a call to its start here."),
		laneTime:    newDuration(meter, MetricLaneTime, "The part of the queue time after the call's lane was claimed."),
		lanes:       newGauge(meter, MetricLaneHeld, "{lane}", "Lanes that are held, idle ones included."),
		usage:       newGauge(meter, MetricSlotUsage, "{slot}", "Slots in use."),
		limit:       newGauge(meter, MetricSlotLimit, "{slot}", "Slots that there are: calls that may run at once."),
	}
}

// Started records an attempt, from 1, as it begins: queued is how long the call has waited, and
// inLane the part of it after its lane was claimed.
func (m *HolderMetrics) Started(ctx context.Context, tool string, attempt int, queued, inLane time.Duration) {
	if !m.queueTime.Enabled(ctx) {
		return
	}
	if attempt > 1 {
		m.repeated.Add(ctx, 1, with(KeyPool.String(m.pool), genaiconv.ToolName.String(tool)))
	}
	m.queueTime.Record(ctx, queued.Seconds(), m.ofPool)
	m.laneTime.Record(ctx, inLane.Seconds(), m.ofPool)
}

// Ended records a call whose result is stored. code is why it is not ok, "" when it is.
func (m *HolderMetrics) Ended(ctx context.Context, tool, status, code string) {
	if m.ended.Enabled(ctx) {
		m.ended.Add(ctx, 1, with(KeyPool.String(m.pool), genaiconv.ToolName.String(tool), KeyStatus.String(status), KeyErrorType.String(code)))
	}
}

// Waited records what a call whose result is stored had waited for, in milliseconds by reason.
func (m *HolderMetrics) Waited(ctx context.Context, tenant string, waits map[string]float64) {
	if !m.wait.Enabled(ctx) {
		return
	}
	for reason, ms := range waits {
		m.wait.Add(ctx, ms/1000, with(KeyPool.String(m.pool), m.tenant(tenant), KeyReason.String(reason)))
	}
}

// LostWorker records that this process has found another one to be lost.
func (m *HolderMetrics) LostWorker(ctx context.Context) { m.workersLost.Add(ctx, 1, m.ofPool) }

// Lost records a lane that was lost.
func (m *HolderMetrics) Lost(ctx context.Context) { m.lost.Add(ctx, 1, m.ofPool) }

// Observe asks load, whenever metrics are read, how many lanes are held, and how many slots are in
// use of how many, until the returned function is called. Lost lanes are counted from 0: to
// Prometheus a counter that comes with its first count has not increased.
func (m *HolderMetrics) Observe(ctx context.Context, load func() (lanes, used, slots int)) (stop func()) {
	m.lost.Add(ctx, 0, m.ofPool)
	m.workersLost.Add(ctx, 0, m.ofPool)
	return observe(m.meter, func(_ context.Context, o metric.Observer) {
		lanes, used, slots := load()
		o.ObserveInt64(m.lanes, int64(lanes), m.ofPool)
		o.ObserveInt64(m.usage, int64(used), m.ofPool)
		o.ObserveInt64(m.limit, int64(slots), m.ofPool)
	}, m.lanes, m.usage, m.limit)
}
