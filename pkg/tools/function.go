package tools

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// New makes a tool of a Go function, which is called in the session's process, concurrently with
// other tool calls of the step. The function must have no side effects: after a crash it is run
// again. For a function with side effects, or a slow one, use [NewRemote].
//
// The schema is made of Args, a struct: a field is a property, required unless its
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

// PlanOf makes a Plan function of a function that takes decoded arguments of type A.
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

// Remote says how the calls of a tool of the user's own run on workers.
type Remote struct {
	// Kind is the kind of payload; workers need a handler for it (package worker). It has 1 to 64
	// lower-case letters, digits and '_', and is no built-in payload.
	Kind protocol.Kind
	// Resources is what a call touches. nil means the session's whole sandbox, exclusively; empty
	// but not nil means nothing: calls run on any worker, concurrently with every call.
	Resources []Resource
	// Delivery is what may happen after a lost worker; "" means rollback.
	Delivery protocol.Delivery
	// Retry says when a call that failed is started again; nil is never. It needs delivery
	// idempotent.
	Retry *protocol.Retry
	// Timeout bounds one attempt; 0 means [protocol.DefaultRunTimeout].
	Timeout time.Duration
	// Pool is whose workers take the calls; "" means the default pool.
	Pool protocol.Pool
	// MinLevel is the least sandbox level of a worker that may run a call: none, paths,
	// full or kernel; "" means any.
	MinLevel string
	// Background makes jobs of the calls; see [Plan].
	Background bool
}

// NewRemote makes a tool whose calls run on workers that have a handler for its kind.
// The schema is made of Args, as in [New]. The model reads the handler's output: a
// string as it is, anything else as JSON. What cannot be a tool is reported by [NewTable].
func NewRemote[Args any](name, description string, remote Remote) Tool {
	schema, err := schemaOf[Args]()
	if err != nil {
		return Tool{Definition: Definition{Name: name, Description: description}, invalid: err}
	}
	return remote.Tool(Definition{Name: name, Description: description, Schema: schema})
}

// Tool makes the tool of a definition whose schema is at hand. What cannot be a tool is
// reported by [NewTable].
func (r Remote) Tool(definition Definition) Tool {
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return wire.NewUserPayload(r.Kind, arguments)
	})
	if _, err := wire.ParseUserKind(string(r.Kind)); err != nil {
		tool.invalid = errors.Join(tool.invalid, err)
	}
	tool.Render = render.User
	return tool
}

// planned makes the tool that plans what r says, with a payload made of the arguments.
func (r Remote) planned(definition Definition, payload func(json.RawMessage) (protocol.Payload, error)) Tool {
	templates, err := compileResources(r.Resources)
	tool := Tool{Definition: definition, Metadata: Metadata{Effect: r.effect()}, invalid: errors.Join(r.validate(), err), own: true}
	if err == nil && json.Valid(definition.Schema) {
		tool.invalid = errors.Join(tool.invalid, checkTemplates(templates, definition.Schema))
	}
	tool.Rules = func(arguments map[string]any) []string { return templateProblems(templates, arguments) }
	tool.Plan = func(scope Scope, raw json.RawMessage) (Plan, *protocol.Error) {
		uses, refusal := fillTemplates(templates, scope, raw)
		if refusal != nil {
			return Plan{}, refusal
		}
		body, err := payload(raw)
		if err != nil {
			return Plan{}, protocol.Errorf(protocol.CodeInternal, "The tool %s is broken: %v. Go on without it.", definition.Name, err)
		}
		return Plan{
			Payload: body, Resources: uses, Delivery: r.Delivery, Retry: r.Retry, Timeout: r.Timeout, Pool: r.Pool, MinLevel: r.MinLevel,
			Background: r.Background,
		}, nil
	}
	return tool
}

// effect is what its resources and delivery say.
func (r Remote) effect() Effect {
	exclusive := slices.ContainsFunc(r.Resources, func(u Resource) bool { return u.Access != protocol.Shared })
	return Effect{
		ReadOnly: len(r.Resources) > 0 && !exclusive, Idempotent: r.Delivery == protocol.Idempotent, Open: true, Loop: r.Background,
	}
}

// Validate returns every error of r, except errors of its kind and of placeholders that a tool's
// arguments do not have.
func (r Remote) Validate() error {
	_, err := compileResources(r.Resources)
	return errors.Join(r.validate(), err)
}

// validate returns every error of r, except errors of its kind and resources.
func (r Remote) validate() error {
	var errs []error
	switch r.Delivery {
	case "", protocol.Idempotent, protocol.AtMostOnce, protocol.Rollback:
	default:
		errs = append(errs, fmt.Errorf("delivery %q: must be %q, %q or %q",
			r.Delivery, protocol.Idempotent, protocol.AtMostOnce, protocol.Rollback))
	}
	if err := r.Retry.Validate(cmp.Or(r.Delivery, protocol.Rollback)); err != nil {
		errs = append(errs, err)
	}
	if r.Timeout < 0 || r.Timeout > maxRemoteTimeout {
		errs = append(errs, fmt.Errorf("timeout %s: must be 0 to %s", r.Timeout, maxRemoteTimeout))
	}
	if r.Pool != "" {
		if _, err := protocol.ParsePool(string(r.Pool)); err != nil {
			errs = append(errs, err)
		} else if r.Pool == protocol.SessionPool {
			errs = append(errs, fmt.Errorf("pool %q: is that of the coordinators", r.Pool))
		}
	}
	if r.MinLevel != "" && !slices.Contains(wire.Levels(), r.MinLevel) {
		errs = append(errs, fmt.Errorf("min_level %q: must be one of %s", r.MinLevel, strings.Join(wire.Levels(), ", ")))
	}
	return errors.Join(errs...)
}

// maxRemoteTimeout bounds the time limit of a tool of the user's own.
const maxRemoteTimeout = 24 * time.Hour

// checkTemplates reports placeholders that the arguments do not have.
func checkTemplates(templates []resourceTemplate, schema json.RawMessage) error {
	var document map[string]any
	_ = json.Unmarshal(schema, &document) // the table reports invalid JSON
	var errs []error
	for _, template := range templates {
		optional, unknown := template.missingFrom(document)
		for _, name := range unknown {
			errs = append(errs, fmt.Errorf("invalid resource: {%s}: the tool has no such argument", name))
		}
		for _, name := range optional {
			errs = append(errs, fmt.Errorf("invalid resource: {%s}: an argument in the first two segments must be required", name))
		}
	}
	return errors.Join(errs...)
}

// templateProblems says which arguments can be no part of a resource key, wherever a call
// happens.
func templateProblems(templates []resourceTemplate, arguments map[string]any) []string {
	var problems []string
	for _, template := range templates {
		_, refusal := template.use(Scope{Session: "any", Sandbox: "any"}, arguments)
		if refusal != nil && refusal.Code == protocol.CodeInvalidArguments {
			problems = append(problems, refusal.Message)
		}
	}
	return problems
}

// fillTemplates returns the uses of a call; nil templates mean the default.
func fillTemplates(templates []resourceTemplate, scope Scope, raw json.RawMessage) ([]protocol.Use, *protocol.Error) {
	if templates == nil {
		return nil, nil
	}
	arguments, err := argument.Decode(raw)
	if err != nil {
		return nil, notDecoded(err)
	}
	uses := make([]protocol.Use, 0, len(templates))
	for _, template := range templates {
		use, refusal := template.use(scope, arguments)
		if refusal != nil {
			return nil, refusal
		}
		uses = append(uses, use)
	}
	return uses, nil
}

// CommandTool makes the tool of a program, which runs in a sandbox of a worker: it reads the
// arguments of a call as JSON from standard input, and writes the result to standard output. An
// exit code other than 0 is a failure, reported with its standard error. command.Arguments and Kind
// are not used. With resources that are not of a sandbox, the program runs in an empty one, not in
// the session's. What cannot be a tool is reported by [NewTable].
func (r Remote) CommandTool(definition Definition, command protocol.ToolRun) Tool {
	argv, env := slices.Clone(command.Argv), maps.Clone(command.Env)
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return protocol.ToolRun{Argv: argv, Arguments: arguments, Env: env, Text: command.Text}, nil
	})
	if len(argv) == 0 || argv[0] == "" {
		tool.invalid = errors.Join(tool.invalid, errors.New("command: must name a program"))
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(env[name], "\x00") {
			tool.invalid = errors.Join(tool.invalid,
				fmt.Errorf("env %q: a name must not be empty or contain \"=\", and nothing may contain a NUL byte", name))
		}
	}
	tool.Render = render.ToolRun
	return tool
}

// MCPTool makes the tool of a server of the Model Context Protocol, which lives in the session's
// sandbox: resources must be of it. Kind is not used. readOnly is what the server says of the tool.
// What cannot be a tool is reported by [NewTable].
func (r Remote) MCPTool(definition Definition, server protocol.MCPServer, name string, readOnly bool) Tool {
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return protocol.MCPCall{Server: server, Tool: name, Arguments: arguments, ReadOnly: readOnly}, nil
	})
	tool.Render, tool.Returns = render.MCP, []protocol.Value{protocol.MCPCallResult{}}
	return tool
}
