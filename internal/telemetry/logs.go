package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"go.opentelemetry.io/contrib/bridges/otelslog"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutlog"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/resource"
	"go.opentelemetry.io/otel/trace"
)

// Names of the attributes by which a line of the process's own log leads to a span. Records that
// are exported have fields for them.
const (
	LogTraceID = "trace_id"
	LogSpanID  = "span_id"
)

// maxLogValue bounds an attribute of an exported record, in bytes, as those of spans are: at level
// debug records may have what a tool printed.
const maxLogValue = 16 << 10

// logHandler writes records to the process's own log, and passes them on to what exports them.
type logHandler struct {
	local    slog.Handler
	exported slog.Handler // does nothing unless Setup has installed an exporter of logs
	redact   func(string) string
}

// NewLogHandler returns a handler that passes records on to local, with the ids of the span that
// they are part of, and to the exporter of logs that [Setup] installs, if it installs one. Only
// what local is enabled for is exported. Every text passes redact first, which removes secrets.
func NewLogHandler(local slog.Handler, redact func(string) string) slog.Handler {
	return &logHandler{local: local, exported: otelslog.NewHandler(Scope), redact: redact}
}

// Enabled implements [slog.Handler].
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.local.Enabled(ctx, level)
}

// Handle implements [slog.Handler]. It does not wait for the exporter: a record that finds its
// queue full replaces the oldest one there.
func (h *logHandler) Handle(ctx context.Context, record slog.Record) (err error) {
	clean := slog.NewRecord(record.Time, record.Level, h.redact(record.Message), record.PC)
	record.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.redacted(a))
		return true
	})
	if h.exported.Enabled(ctx, record.Level) {
		err = h.exported.Handle(ctx, clean.Clone())
	}
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		clean.AddAttrs(slog.String(LogTraceID, span.TraceID().String()), slog.String(LogSpanID, span.SpanID().String()))
	}
	return errors.Join(h.local.Handle(ctx, clean), err)
}

// WithAttrs implements [slog.Handler].
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := h.allRedacted(attrs)
	return &logHandler{local: h.local.WithAttrs(clean), exported: h.exported.WithAttrs(clean), redact: h.redact}
}

// WithGroup implements [slog.Handler].
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{local: h.local.WithGroup(name), exported: h.exported.WithGroup(name), redact: h.redact}
}

func (h *logHandler) allRedacted(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.redacted(a)
	}
	return clean
}

// redacted is an attribute whose texts have no secrets. An error becomes its text.
func (h *logHandler) redacted(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(h.redact(a.Value.String()))
	case slog.KindGroup:
		a.Value = slog.GroupValue(h.allRedacted(a.Value.Group())...)
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error, fmt.Stringer:
			a.Value = slog.StringValue(h.redact(fmt.Sprint(v))) // also of a nil pointer
		case []string:
			texts := make([]string, len(v))
			for i := range v {
				texts[i] = h.redact(v[i])
			}
			a.Value = slog.AnyValue(texts)
		}
	default: // numbers, times
	}
	return a
}

// localOnly is a logger whose records are not exported, for what exporting itself reports: else
// each export that fails would make the next one.
func localOnly(logger *slog.Logger) *slog.Logger {
	if h, is := logger.Handler().(*logHandler); is {
		return slog.New(&logHandler{local: h.local, exported: slog.DiscardHandler, redact: h.redact})
	}
	return logger
}

// newLogExporter makes the exporter of that name; nil for none.
func newLogExporter(ctx context.Context, name string, console io.Writer) (sdklog.Exporter, error) {
	switch name {
	case exportNothing:
		return nil, nil //nolint:nilnil // nothing is exported
	case exportConsole:
		exporter, err := stdoutlog.New(stdoutlog.WithWriter(console))
		if err != nil {
			return nil, fmt.Errorf("open the console log exporter: %w", err)
		}
		return exporter, nil
	}
	exporter, err := autoexport.NewLogExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("open the OTLP log exporter (see OTEL_EXPORTER_OTLP_*): %w", err)
	}
	return exporter, nil
}

// installLogs installs the export of logs, if there is an exporter for it. Its queue has 2,048
// records (OTEL_BLRP_MAX_QUEUE_SIZE).
func installLogs(exporter sdklog.Exporter, described *resource.Resource, getenv func(string) string) (shutdown func(context.Context) error) {
	if exporter == nil {
		return nil
	}
	var batches []sdklog.BatchProcessorOption
	if getenv("OTEL_BLRP_SCHEDULE_DELAY") == "" {
		batches = append(batches, sdklog.WithExportInterval(exportDelay))
	}
	options := []sdklog.LoggerProviderOption{
		sdklog.WithProcessor(sdklog.NewBatchProcessor(exporter, batches...)), sdklog.WithResource(described),
	}
	if getenv("OTEL_LOGRECORD_ATTRIBUTE_VALUE_LENGTH_LIMIT") == "" {
		options = append(options, sdklog.WithAttributeValueLengthLimit(maxLogValue))
	}
	provider := sdklog.NewLoggerProvider(options...)
	otel.SetLoggerProvider(provider)
	return provider.Shutdown
}
