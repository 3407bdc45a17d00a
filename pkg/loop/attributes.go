package loop

import (
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Keys of span attributes. Prompts, arguments and outputs never are attributes.
const (
	keyErrorType      = attribute.Key("error.type")
	keyOperation      = attribute.Key("gen_ai.operation.name")
	keyProvider       = attribute.Key("gen_ai.provider.name")
	keyRequestModel   = attribute.Key("gen_ai.request.model")
	keyResponseModel  = attribute.Key("gen_ai.response.model")
	keyInputTokens    = attribute.Key("gen_ai.usage.input_tokens")
	keyOutputTokens   = attribute.Key("gen_ai.usage.output_tokens")
	keyConversationID = attribute.Key("gen_ai.conversation.id")
	keyToolName       = attribute.Key("gen_ai.tool.name")
	keyToolCallID     = attribute.Key("gen_ai.tool.call.id")
	keyTurn           = attribute.Key("toolfleet.turn")
	keyStep           = attribute.Key("toolfleet.step")
	keySteps          = attribute.Key("toolfleet.steps")
	keyOutcome        = attribute.Key("toolfleet.outcome")
	keyCallID         = attribute.Key("toolfleet.call_id")
	keyToolNames      = attribute.Key("toolfleet.tool_names")
)

// Values of gen_ai.operation.name, which also start the names of spans.
const (
	operationAgent = "invoke_agent"
	operationChat  = "chat"
	operationTool  = "execute_tool"
)

// attributes are those of an operation of the turn's model.
func (t *turnRun) attributes(operation string) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		keyOperation.String(operation), keyConversationID.String(string(t.id)), keyRequestModel.String(t.opts.ModelName),
	}
	if provider := t.provider(); provider != "" {
		attributes = append(attributes, keyProvider.String(provider))
	}
	return attributes
}

func spanName(operation, subject string) string {
	if subject == "" {
		return operation
	}
	return operation + " " + subject
}

// failSpan marks a span as failed. The message stays out of it: it may quote what
// a model or a tool wrote.
func failSpan(span trace.Span, err error) {
	kind := "_OTHER"
	var typed interface{ ErrorType() string }
	if errors.As(err, &typed) {
		kind = typed.ErrorType()
	}
	span.SetAttributes(keyErrorType.String(kind))
	span.SetStatus(codes.Error, kind)
}
