package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

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
