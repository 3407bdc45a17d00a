package loop

import (
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
)

// Keys of span attributes that package genaiconv does not have. Prompts never are
// attributes, arguments and outputs only if [genaiconv.Captures].
const (
	keyErrorType = attribute.Key("error.type")
	keyTurn      = attribute.Key("toolfleet.turn")
	keyStep      = attribute.Key("toolfleet.step")
	keySteps     = attribute.Key("toolfleet.steps")
	keyOutcome   = attribute.Key("toolfleet.outcome")
	keyCallID    = attribute.Key("toolfleet.call_id")
	keyToolNames = attribute.Key("toolfleet.tool_names")
)

// attributes are those of an operation of the turn's model.
func (t *turnRun) attributes(operation string) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		genaiconv.Operation.String(operation), genaiconv.ConversationID.String(string(t.id)), genaiconv.RequestModel.String(t.opts.ModelName),
	}
	if provider := t.provider(); provider != "" {
		attributes = append(attributes, genaiconv.Provider.String(provider))
	}
	if name := t.agentName(); name != "" {
		attributes = append(attributes, genaiconv.AgentName.String(name))
	}
	if operation == genaiconv.OperationChat && t.session.summary != nil {
		attributes = append(attributes, genaiconv.ConversationCompacted.Bool(true))
	}
	return attributes
}

// replyAttributes are those that only some providers and replies have.
func replyAttributes(reply *Reply, first time.Duration) []attribute.KeyValue {
	var attributes []attribute.KeyValue
	if reply.ID != "" {
		attributes = append(attributes, genaiconv.ResponseID.String(reply.ID))
	}
	if reply.Finish != "" {
		attributes = append(attributes, genaiconv.FinishReasons.StringSlice([]string{reply.Finish}))
	}
	if first > 0 {
		attributes = append(attributes, genaiconv.TimeToFirstChunk.Float64(first.Seconds()))
	}
	if n := reply.Usage.CachedTokens; n > 0 {
		attributes = append(attributes, genaiconv.CacheReadTokens.Int64(n))
	}
	if n := reply.Usage.ReasoningTokens; n > 0 {
		attributes = append(attributes, genaiconv.ReasoningTokens.Int64(n))
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
