// Package telemetry makes one trace of a turn, across processes, and the metrics of each process.
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
// Telemetry never decides anything and never fails a call: an exporter that cannot reach its
// backend costs one warning a minute. Standard output is never written to; it belongs to the
// program.
package telemetry

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// ShutdownTimeout bounds how long the last spans and metrics may take to leave, when the
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
	if with.Instance == "" {
		with.Instance = uuid.NewString()
	}
	if with.Logger == nil {
		with.Logger = slog.New(slog.DiscardHandler)
	}
	if with.Console == nil {
		with.Console = os.Stderr
	}
	if with.Getenv == nil {
		with.Getenv = os.Getenv
	}
	return with
}

// Setup installs tracing and metrics for the process as its environment asks for them:
//
//   - OTEL_EXPORTER_OTLP_ENDPOINT, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
//     OTEL_EXPORTER_OTLP_METRICS_ENDPOINT for one of them, or OTEL_TRACES_EXPORTER=otlp and
//     OTEL_METRICS_EXPORTER=otlp, export by OTLP; protocol, headers, certificates,
//     sampling, batching and intervals follow their own OTEL_* variables;
//   - OTEL_METRICS_EXPORTER=prometheus listens for scrapes of /metrics, at
//     OTEL_EXPORTER_PROMETHEUS_HOST (localhost) and OTEL_EXPORTER_PROMETHEUS_PORT (9464), in a
//     process that [Options].Serves;
//   - OTEL_TRACES_EXPORTER=console and OTEL_METRICS_EXPORTER=console write to [Options].Console;
//   - "none" for either, OTEL_SDK_DISABLED=true, or none of all these: nothing.
//
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over service, version and
// instance. Call Setup once, early in main; it sets OpenTelemetry's globals, which [Tracer]
// and [Meter] read. An error names the variable that is wrong; nothing is installed then.
//
// The returned function is never nil. It sends what is left and gives up after
// [ShutdownTimeout]; its error is only worth a debug log.
func Setup(ctx context.Context, service, version string, options *Options) (shutdown func(context.Context) error, err error) {
	opts := options.withDefaults()
	silent := func(context.Context) error { return nil }
	chosen, err := chooseExporters(opts.Getenv)
	if err != nil {
		return silent, err
	}
	if chosen.metrics == exportPrometheus && !opts.Serves {
		chosen.metrics = exportNothing
	}
	if chosen == (choice{traces: exportNothing, metrics: exportNothing}) {
		return silent, nil
	}
	described, err := describe(ctx, service, version, opts.Instance)
	if err != nil {
		return silent, err
	}
	exporter, err := newSpanExporter(ctx, chosen.traces, opts.Console)
	if err != nil {
		return silent, err
	}
	reader, err := newMetricReader(ctx, chosen.metrics, &opts)
	if err != nil {
		if exporter != nil {
			_ = exporter.Shutdown(ctx) // it has sent nothing
		}
		return silent, err
	}
	otel.SetErrorHandler(&exportErrors{logger: opts.Logger, now: time.Now})
	otel.SetLogger(logr.FromSlogHandler(opts.Logger.Handler()))
	return together(installTraces(exporter, described, batching(opts.Getenv)...), installMetrics(reader, described)), nil //nolint:contextcheck // exporting goes on when ctx is over
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

// installTraces installs tracing, if there is an exporter for it.
func installTraces(exporter sdktrace.SpanExporter, described *resource.Resource, how ...sdktrace.BatchSpanProcessorOption) (shutdown func(context.Context) error) {
	if exporter == nil {
		return nil
	}
	otel.SetTextMapPropagator(propagation.TraceContext{})
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(newPromptProcessor(sdktrace.NewBatchSpanProcessor(exporter, how...))), sdktrace.WithResource(described))
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

// together makes one shutdown of several, which wait side by side; those that are nil are left out.
func together(shutdowns ...func(context.Context) error) func(context.Context) error {
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
