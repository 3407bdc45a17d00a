package toolserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// elicited has a person asked what the server wants to know. Where that cannot be, it declines, and
// says why.
func (l *live) elicited(ctx context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	result, err := l.ask(ctx, r.Params)
	if err == nil {
		return result, nil
	}
	note := fmt.Sprintf("the server asked for input (%s); it was declined, because %v", r.Params.Message, err)
	l.each(func(one *shown) {
		one.note(note)
		one.show("[" + note + "]\n")
	})
	return &mcp.ElicitResult{Action: string(protocol.ActionDecline)}, nil
}

// ask passes a question to those who follow the running call. A server does not say for which call
// it asks, so exactly one must run.
func (l *live) ask(ctx context.Context, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	var one *shown
	l.mu.Lock()
	calls := len(l.shown)
	for _, one = range l.shown { //nolint:revive // any: it counts when it is the only one
	}
	l.mu.Unlock()
	switch {
	case params.Mode != "" && params.Mode != "form":
		return nil, errors.New("only a form can be put to a person")
	case calls != 1:
		return nil, fmt.Errorf("%d of its calls run, and it does not say for which it asks", calls)
	case one.ask == nil:
		return nil, errors.New("nobody can be asked")
	}
	schema, resolved, err := form(params.RequestedSchema)
	if err != nil {
		return nil, err
	}
	one.asking.Lock()
	defer one.asking.Unlock()
	asking, cancel := context.WithCancel(one.call)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // the server may take its question back
	content := map[string]any{}
	question := protocol.Question{ID: string(wire.RandomCallID()), Message: params.Message, Schema: schema}
	answer, err := one.ask(asking, question, //nolint:contextcheck // a question ends with its call, and with ctx, too
		func(answer *protocol.Answer) (err error) {
			content, err = filled(answer.Content, resolved)
			return err
		})
	if err != nil {
		return nil, err
	}
	result := &mcp.ElicitResult{Action: string(answer.Action)}
	if answer.Action == protocol.ActionAccept {
		result.Content = content
	}
	return result, nil
}

// form is a schema as it travels, and as it is checked; both are nil without one.
func form(given any) (schema json.RawMessage, resolved *jsonschema.Resolved, err error) {
	if given == nil {
		return nil, nil, nil
	}
	if schema, err = json.Marshal(given); err != nil {
		return nil, nil, err
	}
	var parsed jsonschema.Schema
	if err = json.Unmarshal(schema, &parsed); err == nil {
		resolved, err = parsed.Resolve(nil)
	}
	return schema, resolved, err
}

// filled is the content of an answer with the defaults of what it lacks.
func filled(given json.RawMessage, schema *jsonschema.Resolved) (map[string]any, error) {
	content := map[string]any{}
	if len(given) > 0 {
		if err := json.Unmarshal(given, &content); err != nil || content == nil {
			return nil, errors.New("the content must be a JSON object")
		}
	}
	if schema == nil {
		return content, nil
	}
	if err := schema.ApplyDefaults(&content); err != nil {
		return nil, fmt.Errorf("the content does not fit what is asked: %w", err)
	}
	if err := schema.Validate(content); err != nil {
		return nil, fmt.Errorf("the content does not fit what is asked: %w", err)
	}
	return content, nil
}
