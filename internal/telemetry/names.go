package telemetry

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
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
	SpanInvokeAgent = "invoke_agent" // a turn
	SpanPublish     = "publish"      // its way into JetStream; kind producer
	SpanProcess     = "process"      // one attempt at a worker; kind consumer, child of publish
	SpanSandboxExec = "sandbox exec" // the command or file operation itself
)

// Values of [KeyGenAIOperation].
const (
	OperationChat        = "chat"         // replies of models
	OperationExecuteTool = "execute_tool" // also what the span's name begins with
)

// SpanDispatch names one call, from enqueueing it to its result.
func SpanDispatch(tool string) string { return "dispatch " + tool }

// EventStarted is the event of a [SpanDispatch] that an attempt of the call was begun, by a worker
// that may be lost before it can export a span of its own.
const EventStarted = "toolfleet.attempt.started"

// SpanExecuteTool names the execution of one call by its tool.
func SpanExecuteTool(tool string) string { return OperationExecuteTool + " " + tool }
