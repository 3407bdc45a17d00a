package telemetry

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
)

// Scope is the instrumentation scope of every span and metric of this module.
const Scope = "github.com/toolfleet/toolfleet"

// Tracer returns the tracer of this module; before [Setup], or when nothing is
// exported, its spans do nothing but pass their parent's context on.
func Tracer() trace.Tracer { return otel.Tracer(Scope) }

// Meter returns the meter of this module; before [Setup], or when nothing is exported,
// its instruments do nothing.
func Meter() metric.Meter { return otel.Meter(Scope) }

// Names of spans, from the outside in. Names with a parameter are functions.
const (
	SpanPublish     = "publish"      // its way into JetStream; kind producer
	SpanProcess     = "process"      // one attempt at a worker; kind consumer, child of publish
	SpanSandboxExec = "sandbox exec" // the command or file operation itself
)

// SpanDispatch names one call, from enqueueing it to its result.
func SpanDispatch(tool string) string { return "dispatch " + tool }

// EventStarted is the event of a [SpanDispatch] that an attempt of the call was begun, by a worker
// that may be lost before it can export a span of its own.
const EventStarted = "toolfleet.attempt.started"

// SpanExecuteTool names the execution of one call by its tool.
func SpanExecuteTool(tool string) string { return genaiconv.OperationTool + " " + tool }

// SpanCallTool names the call of a tool of an MCP server, on either side.
func SpanCallTool(tool string) string { return genaiconv.MethodCallTool + " " + tool }

// TypeTool is the [ErrorType] of an MCP call whose tool failed.
const TypeTool = "tool_error"

// Attributes that every operation may have.
const (
	// KeyErrorType is a word of low cardinality; see [ErrorType].
	KeyErrorType = attribute.Key("error.type")

	KeyMessagingSystem      = attribute.Key("messaging.system") // always [MessagingNATS]
	KeyMessagingDestination = attribute.Key("messaging.destination.name")
	KeyMessagingOperation   = attribute.Key("messaging.operation.name")
	KeyMessagingType        = attribute.Key("messaging.operation.type") // send or process

	KeyExitCode = attribute.Key("process.exit.code")
)

// MessagingNATS is the value of [KeyMessagingSystem].
const MessagingNATS = "nats"

// Published are the attributes of the span of a message that goes into a stream.
func Published(stream string) []attribute.KeyValue { return messaging(SpanPublish, "send", stream) }

// Processed returns the attributes of the span of a message that is executed.
func Processed(stream string) []attribute.KeyValue { return messaging(SpanProcess, "process", stream) }

func messaging(operation, kind, stream string) []attribute.KeyValue {
	return []attribute.KeyValue{
		KeyMessagingSystem.String(MessagingNATS), KeyMessagingDestination.String(stream),
		KeyMessagingOperation.String(operation), KeyMessagingType.String(kind),
	}
}

// Attributes of toolfleet. Durations are in milliseconds, as floating point numbers.
const (
	KeyCallID        = attribute.Key("toolfleet.call_id")
	KeyTurn          = attribute.Key("toolfleet.turn")
	KeyStep          = attribute.Key("toolfleet.step")
	KeyPayload       = attribute.Key("toolfleet.payload") // the payload's kind
	KeyLane          = attribute.Key("toolfleet.lane")
	KeyPool          = attribute.Key("toolfleet.pool")
	KeyWorkerID      = attribute.Key("toolfleet.worker_id")
	KeyAttempt       = attribute.Key("toolfleet.attempt") // from 1
	KeyStatus        = attribute.Key("toolfleet.status")  // of the result
	KeyOutcome       = attribute.Key("toolfleet.outcome") // of a turn
	KeyReason        = attribute.Key("toolfleet.reason")  // why a command ended, or what a call waited for
	KeyStream        = attribute.Key("toolfleet.stream")
	KeyQueueMS       = attribute.Key("toolfleet.queue_ms")
	KeyLaneMS        = attribute.Key("toolfleet.lane_ms")
	KeyRunMS         = attribute.Key("toolfleet.run_ms")
	KeyWait          = "toolfleet.wait." // begins the keys of what a call waited for, such as slot_ms
	KeyTenant        = attribute.Key("toolfleet.tenant")
	KeySandboxDriver = attribute.Key("toolfleet.sandbox.driver")
	KeySandboxLevel  = attribute.Key("toolfleet.sandbox.level")
)

// Words of [ErrorType] for errors that bring none of their own.
const (
	TypeCancelled = "cancelled"
	TypeTimeout   = "timeout"
	TypeOther     = "_OTHER"
)

// Fail marks the span as failed, with [ErrorType] of err as its status and as [KeyErrorType]. The
// text of err stays out of it: it may quote what a model or a tool wrote. A nil err does nothing.
func Fail(span trace.Span, err error) {
	if err == nil {
		return
	}
	FailAs(span, ErrorType(err))
}

// FailAs marks the span as failed with a word of low cardinality.
func FailAs(span trace.Span, kind string) {
	span.SetStatus(codes.Error, kind)
	span.SetAttributes(KeyErrorType.String(kind))
}

// ErrorType returns the type of err for spans and logs, with low cardinality: that of the first
// error in its tree with a method ErrorType, else [TypeCancelled] or [TypeTimeout] for the ends of
// a context, else [TypeOther].
func ErrorType(err error) string {
	var typed interface {
		error
		ErrorType() string
	}
	switch {
	case errors.As(err, &typed):
		return typed.ErrorType()
	case errors.Is(err, context.Canceled):
		return TypeCancelled
	case errors.Is(err, context.DeadlineExceeded):
		return TypeTimeout
	default:
		return TypeOther
	}
}

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

// InjectMeta returns the _meta of an MCP message with the trace context of ctx (SEP-414); values is
// nil or is extended.
func InjectMeta(ctx context.Context, values map[string]any) map[string]any {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return values
	}
	if values == nil {
		values = map[string]any{}
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	for name, value := range carrier {
		values[name] = value
	}
	return values
}

// ExtractMeta is [Extract] for the _meta of an MCP message.
func ExtractMeta(ctx context.Context, values map[string]any) context.Context {
	carrier := propagation.MapCarrier{}
	for name, value := range values {
		if text, is := value.(string); is {
			carrier[name] = text
		}
	}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}
