package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// ShutdownTimeout bounds how long the last spans may take to leave, when the
// context of the shutdown does not end earlier: a dead backend must not hold up an exit.
const ShutdownTimeout = 3 * time.Second

// Options are what a process may tell [Setup]; nil and zero mean the defaults.
type Options struct {
	// Instance is the service.instance.id, such as a worker id; default is a fresh UUID.
	Instance string
	// Logger gets what goes wrong with exporting, at most one warning a minute.
	// The default discards it.
	Logger *slog.Logger
	// Console is where OTEL_TRACES_EXPORTER=console writes; default is standard error.
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

// Setup installs tracing for the process as its environment asks for it:
//
//   - OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, or
//     OTEL_TRACES_EXPORTER=otlp, export by OTLP; protocol, headers, certificates,
//     sampling and batching follow their own OTEL_* variables;
//   - OTEL_TRACES_EXPORTER=console writes spans to [Options].Console;
//   - OTEL_TRACES_EXPORTER=none, OTEL_SDK_DISABLED=true, or none of all these: nothing.
//
// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over service, version and
// instance. Call Setup once, early in main; it sets OpenTelemetry's globals, which [Tracer]
// reads. An error names the variable that is wrong; nothing is installed then.
//
// The returned function is never nil. It sends what is left and gives up after
// [ShutdownTimeout]; its error matters to nobody but a debug log.
func Setup(ctx context.Context, service, version string, options *Options) (shutdown func(context.Context) error, err error) {
	opts := options.withDefaults()
	silent := func(context.Context) error { return nil }
	choice, err := chooseExporter(opts.Getenv)
	if err != nil || choice == exportNothing {
		return silent, err
	}
	described, err := describe(ctx, service, version, opts.Instance)
	if err != nil {
		return silent, err
	}
	exporter, err := newExporter(ctx, choice, opts.Console)
	if err != nil {
		return silent, err
	}

	otel.SetErrorHandler(&exportErrors{logger: opts.Logger, now: time.Now})
	otel.SetLogger(logr.FromSlogHandler(opts.Logger.Handler()))
	otel.SetTextMapPropagator(propagation.TraceContext{})
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(described))
	otel.SetTracerProvider(provider)
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, ShutdownTimeout)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			return fmt.Errorf("send the last spans: %w", err)
		}
		return nil
	}, nil
}

// describe says which process the spans are from.
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

func newExporter(ctx context.Context, choice exporterChoice, console io.Writer) (sdktrace.SpanExporter, error) {
	if choice == exportConsole {
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
