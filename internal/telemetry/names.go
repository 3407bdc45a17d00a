package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
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

// Names of spans, from the outside in. Those that carry a name are functions.
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

// Processed are those of the span of a message that is executed.
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
	KeyReason        = attribute.Key("toolfleet.reason")  // why a command ended
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
