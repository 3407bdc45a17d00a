package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strconv"
	"strings"
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
	traces, metrics string
}

// chooseExporters reads the variables that decide whether and how telemetry leaves the process.
// As the OpenTelemetry specification says, an empty variable is an unset one.
func chooseExporters(getenv func(string) string) (choice, error) {
	nothing := choice{traces: exportNothing, metrics: exportNothing}
	if strings.EqualFold(getenv("OTEL_SDK_DISABLED"), "true") {
		return nothing, nil
	}
	traces, tracesErr := chooseExporter(getenv, "TRACES", exportOTLP, exportConsole, exportNothing)
	metrics, metricsErr := chooseExporter(getenv, "METRICS", exportOTLP, exportPrometheus, exportConsole, exportNothing)
	if tracesErr != nil && metricsErr != nil && tracesErr.Error() == metricsErr.Error() { // of a variable for both
		metricsErr = nil
	}
	if err := errors.Join(tracesErr, metricsErr); err != nil {
		return nothing, err
	}
	if metrics == exportPrometheus {
		if err := checkPort(getenv); err != nil {
			return nothing, err
		}
	}
	return choice{traces: traces, metrics: metrics}, nil
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
	for _, name := range []string{ofSignal, "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if value := getenv(name); value != "" {
			if !slices.Contains(allowed, value) {
				return fmt.Errorf("%s=%q: must be %s", name, value, oneOf(allowed))
			}
			return nil // the signal's own wins
		}
	}
	return nil
}

// checkEndpoint refuses what is no URL, for which an exporter takes its default.
func checkEndpoint(getenv func(string) string, ofSignal string) error {
	for _, name := range []string{ofSignal, "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		value := getenv(name)
		if value == "" {
			continue
		}
		where, err := url.Parse(value)
		if err != nil || where.Scheme != "unix" && (where.Host == "" || where.Scheme != "http" && where.Scheme != "https") {
			return fmt.Errorf("%s=%q: must be a URL, as in http://localhost:4318", name, value)
		}
		return nil // the signal's own wins
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
