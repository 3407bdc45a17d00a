package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// New makes a tool of a Go function, which is called in the session's process, concurrently with
// other tool calls of the step. The function must have no side effects: after a crash it is run
// again. For one that has, or that takes long, use [NewRemote].
//
// The schema is that of Args, a struct: a field is a property, required unless its
// JSON tag says omitempty or omitzero, and described by its jsonschema tag. A string
// that the function returns is what the model reads; anything else becomes JSON.
//
// An error that is a *[protocol.Error] goes to the model as it is; any other becomes
// "tool_failed" with its text, so let it say what to do next. ctx ends with the turn.
//
// What cannot be a tool (an Args that has no schema, a bad name) is reported by
// [NewTable].
func New[Args, Output any](name, description string, fn func(ctx context.Context, args Args) (Output, error)) Tool {
	schema, err := schemaOf[Args]()
	tool := Tool{Definition: Definition{Name: name, Description: description, Schema: schema}, Metadata: Metadata{Effect: Effect{ReadOnly: true}}, invalid: err, own: true}
	if fn == nil {
		tool.invalid = errors.Join(err, errors.New("function: missing"))
	}
	tool.Plan = PlanOf(func(_ Scope, args Args) (Plan, *protocol.Error) {
		return Plan{Inline: func(ctx context.Context) (string, *protocol.Error) {
			output, err := fn(ctx, args)
			if failure := asToolError(err); failure != nil {
				return "", failure
			}
			text, err := outputText(output)
			if err != nil {
				return "", protocol.Errorf(protocol.CodeInternal, "The tool %s is broken: its output is no JSON (%v).", name, err)
			}
			return text, nil
		}}, nil
	})
	return tool
}

// schemaOf infers the schema of arguments of type A.
func schemaOf[A any]() (json.RawMessage, error) {
	inferred, err := jsonschema.For[A](nil)
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	if inferred.Type != "object" {
		return nil, fmt.Errorf("arguments: %s: must be a struct", reflect.TypeFor[A]())
	}
	encoded, err := json.Marshal(inferred)
	if err != nil {
		return nil, fmt.Errorf("arguments: %w", err)
	}
	return encoded, nil
}

// asToolError is an error of a tool's function as a model gets it. A nil *[protocol.Error] is
// none, also as an error.
func asToolError(err error) *protocol.Error {
	if err == nil {
		return nil
	}
	if typed, ok := errors.AsType[*protocol.Error](err); ok {
		return typed
	}
	return protocol.Errorf(protocol.CodeToolFailed, "%s", prose.Valid(err.Error()))
}

// outputText is what a model reads of a function's output.
func outputText(output any) (string, error) {
	if text, ok := output.(string); ok {
		return text, nil
	}
	encoded, err := prose.JSON(output)
	return string(encoded), err
}

// PlanOf makes a Plan function of one that takes decoded arguments of type A.
func PlanOf[A any](plan func(Scope, A) (Plan, *protocol.Error)) func(Scope, json.RawMessage) (Plan, *protocol.Error) {
	return func(scope Scope, raw json.RawMessage) (Plan, *protocol.Error) {
		var arguments A
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&arguments); err != nil {
			return Plan{}, notDecoded(err)
		}
		return plan(scope, arguments)
	}
}

// notDecoded is why arguments that are valid under the schema do not fit into a Go type.
func notDecoded(err error) *protocol.Error {
	if misfit, is := errors.AsType[*json.UnmarshalTypeError](err); is && misfit.Field != "" {
		return protocol.Errorf(protocol.CodeInvalidArguments, "%s: the tool cannot take this %s", misfit.Field, prose.Short(misfit.Value, 100))
	}
	return protocol.Errorf(protocol.CodeInvalidArguments, "%v", err)
}
