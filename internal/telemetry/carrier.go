package telemetry

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Carrier lets a propagator read and write NATS headers. It writes lower-case
// names, as W3C Trace Context spells them; it reads any case, because senders that
// copy HTTP headers write "Traceparent".
type Carrier nats.Header

var _ propagation.TextMapCarrier = Carrier(nil)

// Get implements [propagation.TextMapCarrier].
func (c Carrier) Get(key string) string {
	if values, ok := c[strings.ToLower(key)]; ok {
		return first(values)
	}
	for name, values := range c {
		if strings.EqualFold(name, key) {
			return first(values)
		}
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. The carrier must not be nil.
func (c Carrier) Set(key, value string) { c[strings.ToLower(key)] = []string{value} }

// Keys implements [propagation.TextMapCarrier]: lower case, sorted.
func (c Carrier) Keys() []string {
	keys := make([]string, 0, len(c))
	for name := range c {
		keys = append(keys, strings.ToLower(name))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// TraceID returns the trace of ctx in hex; "" when there is none, or it is not exported.
func TraceID(ctx context.Context) string {
	if span := trace.SpanContextFromContext(ctx); span.IsValid() && span.IsSampled() {
		return span.TraceID().String()
	}
	return ""
}

// Inject writes the trace context of ctx into header, which must not be nil.
// Without a span in ctx it writes nothing.
func Inject(ctx context.Context, header nats.Header) {
	propagation.TraceContext{}.Inject(ctx, Carrier(header))
}

// Extract returns ctx with the trace context that header carries as its remote
// parent, or ctx itself when there is none or it is malformed. Header may be nil.
func Extract(ctx context.Context, header nats.Header) context.Context {
	return propagation.TraceContext{}.Extract(ctx, Carrier(header))
}

// ExtractEnvironment adds to ctx the trace in which this process was started: TRACEPARENT and
// TRACESTATE, as the OpenTelemetry specification names them in an environment. Values that are none
// are ignored.
func ExtractEnvironment(ctx context.Context, getenv func(name string) string) context.Context {
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{
		"traceparent": getenv("TRACEPARENT"), "tracestate": getenv("TRACESTATE"),
	})
}

// meta carries the trace context in the _meta of MCP messages (SEP-414).
type meta map[string]any

// Get implements [propagation.TextMapCarrier].
func (m meta) Get(key string) string {
	value, _ := m[key].(string)
	return value
}

// Set implements [propagation.TextMapCarrier].
func (m meta) Set(key, value string) { m[key] = value }

// Keys implements [propagation.TextMapCarrier].
func (m meta) Keys() []string { return slices.Sorted(maps.Keys(m)) }

// InjectMeta returns the _meta of an MCP message with the trace context of ctx; values is nil or is
// extended.
func InjectMeta(ctx context.Context, values map[string]any) map[string]any {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return values
	}
	if values == nil {
		values = map[string]any{}
	}
	propagation.TraceContext{}.Inject(ctx, meta(values))
	return values
}

// ExtractMeta is [Extract] for the _meta of an MCP message.
func ExtractMeta(ctx context.Context, values map[string]any) context.Context {
	return propagation.TraceContext{}.Extract(ctx, meta(values))
}
