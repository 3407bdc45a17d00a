package telemetry

import "go.opentelemetry.io/otel/attribute"

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

// Attributes of models, agents and tools: the gen_ai conventions, spelled out here
// because the semconv package of Go no longer has them.
const (
	KeyGenAIOperation    = attribute.Key("gen_ai.operation.name") // invoke_agent, chat or execute_tool
	KeyGenAIProvider     = attribute.Key("gen_ai.provider.name")
	KeyGenAIConversation = attribute.Key("gen_ai.conversation.id") // the session id
	KeyGenAIRequestModel = attribute.Key("gen_ai.request.model")
	KeyGenAITokenType    = attribute.Key("gen_ai.token.type") // input or output
	KeyGenAIToolName     = attribute.Key("gen_ai.tool.name")
	KeyGenAIToolCallID   = attribute.Key("gen_ai.tool.call.id") // the model's own id
)

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
	KeySandboxDriver = attribute.Key("toolfleet.sandbox.driver")
	KeySandboxLevel  = attribute.Key("toolfleet.sandbox.level")
)
