package telemetry

import (
	"context"
	"fmt"
	"io"

	"go.opentelemetry.io/contrib/exporters/autoexport"
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
