// Package telemetry makes one trace of a turn, across processes, and the metrics and the exported
// log of each process.
//
//	coordinator                                              worker
//	run
//	└─ invoke_agent
//	   ├─ chat {model}
//	   └─ dispatch {tool}
//	      └─ publish ────────────────traceparent header────► process
//	                                                         └─ execute_tool {tool}
//	                                                            └─ sandbox exec
//
// The root is named after what the user typed: run, chat (one for each turn), call or submit. With
// submit the turn is a call, too: submit, dispatch turn_run, publish, and, in the coordinator that
// runs it, process, invoke_agent.
//
// [Setup] installs exporters when, and only when, the standard OTEL_* variables ask for them.
// Without them nothing is installed: spans and metrics cost next to nothing, and nothing is sent or
// logged. The trace context of a caller is still passed on, so that a trace does not end at such a
// process.
//
// [Inject] and [Extract] carry the context in NATS headers under the lower-case names of W3C Trace
// Context, because NATS headers are case-sensitive. The names of spans, metrics and attributes
// stand in this package.
//
// Metrics come in groups, one for each part of the fleet that has some: [HolderMetrics],
// [WorkerMetrics], [CallMetrics], [TurnMetrics] and [ModelMetrics]. Attributes are pools, tools,
// models, statuses, codes and the like: never lanes, sessions, calls or what a model wrote.
//
// Records of the log that are made inside of a call or a turn have the ids of its span, in the
// process's own log and where they are exported to: [NewLogHandler].
//
// Telemetry never decides anything and never fails a call: an exporter that cannot reach its
// backend costs one warning a minute. Spans and records wait for it in queues that are bounded;
// what finds its queue full is lost. Standard output is never written to; it belongs to the
// program.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// ShutdownTimeout bounds how long the last spans, metrics and records may take to leave, when the
// context of the shutdown does not end earlier: a dead backend must not hold up an exit.
const ShutdownTimeout = 3 * time.Second

// Options are what a process may tell [Setup]; nil and zero mean the defaults.
type Options struct {
	// Instance is the service.instance.id, such as a worker id; default is a fresh UUID.
	Instance string
	// Serves means that the process runs until it is stopped. Only such a process is scraped: for
	// others OTEL_METRICS_EXPORTER=prometheus is "none", as they would be over before anybody came,
	// and take the port of one that serves.
	Serves bool
	// TraceFile is a file to which spans are appended, whatever the environment says; "" means
	// none.
	TraceFile string
	// Logger gets what goes wrong with exporting, at most one warning a minute.
	// The default discards it.
	Logger *slog.Logger
	// Console is where the exporter "console" writes; default is standard error.
	Console io.Writer
	// Getenv decides whether and how to export; default is [os.Getenv]. An exporter
	// then reads its details from the process's own environment.
	Getenv func(name string) string
}

func (o *Options) withDefaults() Options {
	var with Options
	if o != nil {
		with = *o
	}
	with.Instance = cmp.Or(with.Instance, uuid.NewString())
	with.Logger = cmp.Or(with.Logger, slog.New(slog.DiscardHandler))
	if with.Console == nil {
		with.Console = os.Stderr
	}
	if with.Getenv == nil {
		with.Getenv = os.Getenv
	}
	return with
}

// Setup installs tracing, metrics and the export of logs for the process as its environment asks
// for them:
//
//   - OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
//     OTEL_EXPORTER_OTLP_METRICS_ENDPOINT and OTEL_EXPORTER_OTLP_LOGS_ENDPOINT for one of them, or
//     OTEL_TRACES_EXPORTER=otlp, OTEL_METRICS_EXPORTER=otlp and OTEL_LOGS_EXPORTER=otlp, export by
//     OTLP; protocol, headers, certificates, sampling, batching and intervals follow their own
//     OTEL_* variables;
//   - OTEL_METRICS_EXPORTER=prometheus listens for scrapes of /metrics, at
//     OTEL_EXPORTER_PROMETHEUS_HOST (localhost) and OTEL_EXPORTER_PROMETHEUS_PORT (9464), in a
//     process that [Options].Serves;
//   - OTEL_TRACES_EXPORTER=console, OTEL_METRICS_EXPORTER=console and OTEL_LOGS_EXPORTER=console
//     write to [Options].Console;
//   - "none" for one of them, OTEL_SDK_DISABLED=true, or none of all these: nothing.
//
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over service, version and
// instance. Call Setup once, early in main; it sets OpenTelemetry's globals, which [Tracer]
// and [Meter] read. An error names the variable that is wrong; nothing is installed then.
//
// The returned function is never nil. It sends what is left and gives up after
// [ShutdownTimeout]; its error is only worth a debug log.
func Setup(ctx context.Context, service, version string, options *Options) (shutdown func(context.Context) error, err error) {
	opts := options.withDefaults()
	opts.Logger = localOnly(opts.Logger)
	silent := func(context.Context) error { return nil }
	chosen, err := chooseExporters(opts.Getenv)
	if err != nil {
		return silent, err
	}
	if chosen.metrics == exportPrometheus && !opts.Serves {
		chosen.metrics = exportNothing
	}
	if opts.TraceFile == "" && chosen == (choice{traces: exportNothing, metrics: exportNothing, logs: exportNothing}) {
		return silent, nil
	}
	described, err := describe(ctx, service, version, opts.Instance)
	if err != nil {
		return silent, err
	}
	exporters, err := openSpanExporters(ctx, chosen.traces, &opts)
	if err != nil {
		return silent, err
	}
	abandon := func() { // they have sent nothing
		for _, exporter := range exporters {
			_ = exporter.Shutdown(ctx)
		}
	}
	logs, err := newLogExporter(ctx, chosen.logs, opts.Console)
	if err != nil {
		abandon()
		return silent, err
	}
	reader, err := newMetricReader(ctx, chosen.metrics, &opts)
	if err != nil {
		abandon()
		if logs != nil {
			_ = logs.Shutdown(ctx)
		}
		return silent, err
	}
	otel.SetErrorHandler(&exportErrors{logger: opts.Logger, now: time.Now})
	otel.SetLogger(logr.FromSlogHandler(opts.Logger.Handler()))
	return shutdownAll(installTraces(exporters, described, batching(opts.Getenv)...), installMetrics(reader, described), installLogs(logs, described, opts.Getenv)), nil //nolint:contextcheck // exporting goes on when ctx is over
}

// exportDelay is how long a span that has ended waits for others, when the call that it is part of
// goes on.
const exportDelay = 200 * time.Millisecond

// batching is what the environment leaves open of how spans are batched.
func batching(getenv func(string) string) []sdktrace.BatchSpanProcessorOption {
	if getenv("OTEL_BSP_SCHEDULE_DELAY") != "" {
		return nil
	}
	return []sdktrace.BatchSpanProcessorOption{sdktrace.WithBatchTimeout(exportDelay)}
}

// installTraces installs tracing, if there are exporters for it. They do not wait for each other.
func installTraces(exporters []sdktrace.SpanExporter, described *resource.Resource, how ...sdktrace.BatchSpanProcessorOption) (shutdown func(context.Context) error) {
	if len(exporters) == 0 {
		return nil
	}
	otel.SetTextMapPropagator(propagation.TraceContext{})
	options := []sdktrace.TracerProviderOption{sdktrace.WithResource(described)}
	for _, exporter := range exporters {
		options = append(options, sdktrace.WithSpanProcessor(newPromptProcessor(sdktrace.NewBatchSpanProcessor(exporter, how...))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	otel.SetTracerProvider(provider)
	return provider.Shutdown
}

// installMetrics installs metrics, if there is a reader for them.
func installMetrics(reader sdkmetric.Reader, described *resource.Resource) (shutdown func(context.Context) error) {
	if reader == nil {
		return nil
	}
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(described),
		sdkmetric.WithCardinalityLimit(maxSeries))
	otel.SetMeterProvider(provider)
	return provider.Shutdown
}

// shutdownAll makes one shutdown of several, which run concurrently; nil ones are left out.
func shutdownAll(shutdowns ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, ShutdownTimeout)
		defer cancel()
		errs := make([]error, len(shutdowns))
		var ends sync.WaitGroup
		for i, shutdown := range shutdowns {
			if shutdown != nil {
				ends.Go(func() { errs[i] = shutdown(ctx) })
			}
		}
		ends.Wait()
		return errors.Join(errs...)
	}
}

// describe says which process the telemetry is from.
func describe(ctx context.Context, service, version, instance string) (*resource.Resource, error) {
	described, err := resource.New(ctx,
		resource.WithAttributes(
			semconv.ServiceName(service), semconv.ServiceVersion(version), semconv.ServiceInstanceID(instance),
		),
		resource.WithHost(),
		resource.WithTelemetrySDK(),
		resource.WithFromEnv(), // last: it wins
	)
	if err != nil {
		return nil, fmt.Errorf("read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return described, nil
}

// openSpanExporters opens the exporter of that name, and that of the trace file.
func openSpanExporters(ctx context.Context, name string, opts *Options) (all []sdktrace.SpanExporter, err error) {
	exporter, err := newSpanExporter(ctx, name, opts.Console)
	if err != nil {
		return nil, err
	}
	if exporter != nil {
		all = append(all, exporter)
	}
	if opts.TraceFile == "" {
		return all, nil
	}
	file, err := openTraceFile(opts.TraceFile, maxTraceFile, opts.Logger)
	if err == nil {
		exporter, err = newTraceFileExporter(ctx, file)
	}
	if err != nil {
		for _, exporter := range all {
			_ = exporter.Shutdown(ctx) // it has sent nothing
		}
		return nil, fmt.Errorf("--trace-file: %w", err)
	}
	return append(all, exporter), nil
}

// newSpanExporter makes the exporter of that name; nil for none.
func newSpanExporter(ctx context.Context, name string, console io.Writer) (sdktrace.SpanExporter, error) {
	switch name {
	case exportNothing:
		return nil, nil //nolint:nilnil // nothing is exported
	case exportConsole:
		exporter, err := stdouttrace.New(stdouttrace.WithWriter(console))
		if err != nil {
			return nil, fmt.Errorf("open the console trace exporter: %w", err)
		}
		return exporter, nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the OTLP trace exporter (see OTEL_EXPORTER_OTLP_*): %w", err)
	}
	return exporter, nil
}

// newMetricReader makes what reads metrics for the exporter of that name; nil for none.
func newMetricReader(ctx context.Context, name string, opts *Options) (sdkmetric.Reader, error) {
	switch name {
	case exportNothing:
		return nil, nil //nolint:nilnil // nothing is exported
	case exportConsole:
		exporter, err := stdoutmetric.New(stdoutmetric.WithWriter(opts.Console))
		if err != nil {
			return nil, fmt.Errorf("open the console metric exporter: %w", err)
		}
		return sdkmetric.NewPeriodicReader(exporter), nil
	}
	reader, err := autoexport.NewMetricReader(ctx)
	switch {
	case err == nil:
		return reader, nil
	case name == exportPrometheus:
		return nil, fmt.Errorf("listen for scrapes at OTEL_EXPORTER_PROMETHEUS_HOST=%q, OTEL_EXPORTER_PROMETHEUS_PORT=%q: %w",
			opts.Getenv("OTEL_EXPORTER_PROMETHEUS_HOST"), opts.Getenv("OTEL_EXPORTER_PROMETHEUS_PORT"), err)
	}
	return nil, fmt.Errorf("open the OTLP metric exporter (see OTEL_EXPORTER_OTLP_*): %w", err)
}

// warnEvery is the least time between two warnings about exporting.
const warnEvery = time.Minute

// exportErrors logs what the SDK could not do: the first error at once, and then
// at most one a minute with the number of those left out. It is safe for concurrent use.
type exportErrors struct {
	logger *slog.Logger
	now    func() time.Time

	mu      sync.Mutex
	next    time.Time // when the next warning may be written
	omitted int       // errors since the last warning
}

var _ otel.ErrorHandler = (*exportErrors)(nil)

// Handle implements [otel.ErrorHandler]. A cancelled export is none that failed: the end of a
// process cancels the one that is under way, and then sends everything. Nor is one that comes
// before there is anything to export, as on a busy machine with a short interval: the next one has
// it.
func (e *exportErrors) Handle(err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, sdkmetric.ErrReaderNotRegistered) {
		return
	}
	e.mu.Lock()
	now := e.now()
	if now.Before(e.next) {
		e.omitted++
		e.mu.Unlock()
		return
	}
	omitted := e.omitted
	e.next, e.omitted = now.Add(warnEvery), 0
	e.mu.Unlock()
	ctx := context.Background() //nolint:forbidigo // the SDK gives none: exporting belongs to no request
	e.logger.LogAttrs(ctx, slog.LevelWarn, "telemetry export failed",
		slog.Any("error", err), slog.Int("omitted", omitted))
}

// Names of exporters, as the OTEL_*_EXPORTER variables spell them; exportNothing is
// also what an empty environment asks for.
const (
	exportNothing    = "none"
	exportOTLP       = "otlp"
	exportConsole    = "console"
	exportPrometheus = "prometheus"
)

// choice is what the environment asks for: an exporter for each signal.
type choice struct {
	traces, metrics, logs string
}

// chooseExporters reads the variables that decide whether and how telemetry leaves the process.
// As the OpenTelemetry specification says, an empty variable is an unset one.
func chooseExporters(getenv func(string) string) (choice, error) {
	nothing := choice{traces: exportNothing, metrics: exportNothing, logs: exportNothing}
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return nothing, nil
	}
	var errs []error
	choose := func(signal string, allowed ...string) string {
		chosen, err := chooseExporter(getenv, signal, allowed...)
		if err != nil && !slices.ContainsFunc(errs, func(e error) bool { return e.Error() == err.Error() }) { // of a variable for all of them
			errs = append(errs, err)
		}
		return chosen
	}
	chosen := choice{
		traces:  choose("TRACES", exportOTLP, exportConsole, exportNothing),
		metrics: choose("METRICS", exportOTLP, exportPrometheus, exportConsole, exportNothing),
		logs:    choose("LOGS", exportOTLP, exportConsole, exportNothing),
	}
	if chosen.metrics == exportPrometheus {
		errs = append(errs, checkPort(getenv))
	}
	if err := errors.Join(errs...); err != nil {
		return nothing, err
	}
	return chosen, nil
}

// chooseExporter reads the variables of one signal.
func chooseExporter(getenv func(string) string, signal string, allowed ...string) (string, error) {
	name := "OTEL_" + signal + "_EXPORTER"
	chosen := getenv(name)
	switch {
	case chosen == "" && getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") == "":
		return exportNothing, nil
	case chosen == "":
		chosen = exportOTLP
	case !slices.Contains(allowed, chosen):
		return "", fmt.Errorf("%s=%q: must be %s", name, chosen, oneOf(allowed))
	}
	if chosen == exportOTLP {
		return chosen, cmp.Or(checkProtocol(getenv, "OTEL_EXPORTER_OTLP_"+signal+"_PROTOCOL"), checkEndpoint(getenv, "OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT"))
	}
	return chosen, nil
}

// checkProtocol refuses a transport that there is no exporter for.
func checkProtocol(getenv func(string) string, ofSignal string) error {
	allowed := []string{"grpc", "http/protobuf"}
	if name, value := ownOrCommon(getenv, ofSignal, "OTEL_EXPORTER_OTLP_PROTOCOL"); value != "" && !slices.Contains(allowed, value) {
		return fmt.Errorf("%s=%q: must be %s", name, value, oneOf(allowed))
	}
	return nil
}

// ownOrCommon is the variable that counts, with its value: the signal's own wins.
func ownOrCommon(getenv func(string) string, own, common string) (name, value string) {
	if value = getenv(own); value != "" {
		return own, value
	}
	return common, getenv(common)
}

// checkEndpoint refuses what is no URL, for which an exporter takes its default.
func checkEndpoint(getenv func(string) string, ofSignal string) error {
	name, value := ownOrCommon(getenv, ofSignal, "OTEL_EXPORTER_OTLP_ENDPOINT")
	where, err := url.Parse(value)
	if value != "" && (err != nil || where.Scheme != "unix" && (where.Host == "" || where.Scheme != "http" && where.Scheme != "https")) {
		return fmt.Errorf("%s=%q: must be a URL, as in http://localhost:4318", name, value)
	}
	return nil
}

// checkPort rejects port 0, at which the metrics could not be found.
func checkPort(getenv func(string) string) error {
	const name = "OTEL_EXPORTER_PROMETHEUS_PORT"
	value := getenv(name)
	if value == "" {
		return nil
	}
	if port, err := strconv.ParseUint(value, 10, 16); err != nil || port == 0 {
		return fmt.Errorf("%s=%q: must be 1 to 65535", name, value)
	}
	return nil
}

// oneOf lists words for an error: "a", "b" or "c".
func oneOf(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// exportPause is the least time between two exports that the ends of calls ask for.
const exportPause = 20 * time.Millisecond

// promptProcessor has spans exported as soon as the outermost one of this process has ended, such
// as that of a call on a worker: what a killed process has not exported is lost. Whoever ends a
// span does not wait for that.
type promptProcessor struct {
	sdktrace.SpanProcessor // batches

	ended      chan struct{} // a call has, since the last export began
	stop, done chan struct{}
	once       sync.Once
}

func newPromptProcessor(batches sdktrace.SpanProcessor) *promptProcessor {
	p := &promptProcessor{SpanProcessor: batches, ended: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go p.export()
	return p
}

// OnEnd implements [sdktrace.SpanProcessor].
func (p *promptProcessor) OnEnd(span sdktrace.ReadOnlySpan) {
	p.SpanProcessor.OnEnd(span)
	if parent := span.Parent(); parent.IsValid() && !parent.IsRemote() {
		return
	}
	select {
	case p.ended <- struct{}{}:
	default: // the next export takes it, too
	}
}

// export exports what has ended, again and again. The batches bound how long one export takes.
func (p *promptProcessor) export() {
	defer close(p.done)
	ctx := context.Background() //nolint:forbidigo // the SDK gives none: exporting belongs to no request
	pause := time.NewTicker(exportPause)
	defer pause.Stop()
	for {
		select {
		case <-p.ended:
			if err := p.ForceFlush(ctx); err != nil {
				otel.Handle(err)
			}
		case <-p.stop:
			return
		}
		select {
		case <-pause.C:
		case <-p.stop:
			return
		}
	}
}

// Shutdown implements [sdktrace.SpanProcessor]. What has ended is exported with it.
func (p *promptProcessor) Shutdown(ctx context.Context) error {
	p.once.Do(func() { close(p.stop) })
	select {
	case <-p.done:
	case <-ctx.Done():
	}
	return p.SpanProcessor.Shutdown(ctx)
}
