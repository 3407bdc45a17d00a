package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/modelpath"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Definition is a tool as the model gets it.
type Definition struct {
	// Name has 1 to 64 letters, digits, '_' and '-'.
	Name string `json:"name"`
	// Description is for the model: what the tool does, what it returns, and its limits.
	Description string `json:"description"`
	// Schema is the JSON Schema of the arguments: always of type "object".
	Schema json.RawMessage `json:"parameters"`
	// Native is how the tool is declared to providers that run it themselves, by the
	// provider's name ("openai"): an object with a "type". Such a tool is left out for
	// other providers, and never run by the fleet; Schema and Plan are not used.
	Native map[string]json.RawMessage `json:"native,omitempty"`
}

// Define makes a definition whose arguments are an object with these properties, in JSON, and no
// others; required are the names of those that a call needs.
func Define(name, description, properties string, required ...string) Definition {
	names := ""
	if len(required) > 0 {
		names = `, "required": ["` + strings.Join(required, `", "`) + `"]`
	}
	return Definition{
		Name: name, Description: description,
		Schema: json.RawMessage(`{"type": "object", "properties": {` + properties + `}` + names + `, "additionalProperties": false}`),
	}
}

// isFor reports whether models of a provider can have the tool.
func (d *Definition) isFor(provider string) bool {
	return len(d.Native) == 0 || d.Native[provider] != nil
}

// Tool is a definition, the functions that plan its calls and render their results, and metadata.
type Tool struct {
	Definition
	Metadata

	// Plan turns arguments, already valid under the schema, into what to do. It is
	// pure: same scope and arguments, same plan. An error becomes a rejected result.
	Plan func(scope Scope, args json.RawMessage) (Plan, *protocol.Error)
	// Rules checks what the schema cannot express. It returns one sentence for each error, which
	// begins with the property: "old: required because new is given". It is pure, and gets the
	// arguments as the model wrote them, valid under the schema or not, so that one message lists
	// all errors. nil has no rules.
	Rules func(arguments map[string]any) []string
	// Lenient ignores arguments that the schema does not have, where it would refuse them.
	Lenient bool
	// Render turns a result, of any status, into the text that the model reads; nil
	// means the value as JSON. Call it through [Tool.Text].
	Render func(result *protocol.Result) string
	// Revert says how the effect of a call is undone; nil says that nothing undoes it.
	Revert *Revert
	// Format words results and failures as another system does; nil leaves them as Render returns
	// them. If all tools of a table that have a Format share one, the table uses it for the user's
	// own tools and for unknown names, too.
	Format *Format

	input   *argument.Schema // of tool_continue for this tool; nil unless it is stateful
	invalid error            // the mistake of the tool's author that NewTable reports
	own     bool             // made by the user, not by a toolset
	// called and arguments are the name and the arguments, as the model wrote them, of the call
	// for which [Table.Plan] returned this copy.
	called, arguments string
	// planIn makes the Plan of a tool that reads its table; nil for all others.
	planIn func(t *Table) func(Scope, json.RawMessage) (Plan, *protocol.Error)
}

// Metadata describes a tool beyond its [Definition]. All of it is optional.
type Metadata struct {
	// Title is a name for people; "" means one made from the tool's name.
	Title string
	// Help is documentation beyond the description, for [Table.Document]: plain text or Markdown.
	Help string
	// Hint is a sentence or two for the system prompt of sessions that have the tool.
	Hint string
	// Effect says what calls may change. It is a hint for clients.
	Effect Effect
	// Returns has one value of each type that results may have; nil says nothing about types.
	Returns []protocol.Value
	// Structured is the JSON Schema of the structured content that an MCP server's tool returns;
	// nil means any.
	Structured json.RawMessage
}

// Scope is where a tool call happens.
type Scope struct {
	Session protocol.SessionID
	// Sandbox is the id of the session's sandbox: one segment of a resource key.
	Sandbox string
	// Guard is the check before a file is changed.
	Guard protocol.Guard
}

// Plan is what a tool call becomes: exactly one of Inline, Payload and Session is set.
type Plan struct {
	// Inline runs in the coordinator. It must have no side effects.
	Inline func(ctx context.Context) (string, *protocol.Error)

	// Session is a request that the session answers itself, about its jobs or the handles of
	// stateful tools. Only built-in tools make such requests.
	Session any

	// Background makes a job of the call: the model gets a handle at once, and reads the result
	// when the job ends. Until then the call holds its resources.
	Background bool
	// Payload is what a worker executes.
	Payload protocol.Payload
	// Resources is what the call touches; nil means the session's whole sandbox, exclusively. Empty
	// but not nil means nothing: the call gets a lane of its own, and runs on any worker,
	// concurrently with every call.
	Resources []protocol.Use
	// Delivery is what may happen after a lost worker; "" means rollback.
	Delivery protocol.Delivery
	// Retry says when a call that failed is started again; nil is never.
	Retry *protocol.Retry
	// Timeout bounds one attempt; 0 means the protocol's default.
	Timeout time.Duration
	// Pool is who can serve the call; "" means the default pool.
	Pool protocol.Pool
	// MinLevel is the least sandbox level that may run the call; "" means any.
	MinLevel string
}

// Text returns a result as the model reads it: by the tool's Format or Render, or the value as JSON
// when there is neither, one panics, or t is nil. It mentions that the call was started again. It
// is valid UTF-8 of at most 48,000 characters.
func (t *Tool) Text(result *protocol.Result) string {
	if result == nil {
		result = &protocol.Result{
			Status: protocol.StatusOutcomeUnknown,
			Error:  protocol.Errorf(protocol.CodeInternal, "The fleet kept no result of this call."),
		}
	}
	text := prose.Valid(t.render(result))
	if t == nil || t.Format == nil {
		text = render.Again(result, text)
	}
	return render.Shown(text, result.CallID, result.Kept)
}

// render calls the tool's Format or Render function, and catches its panic.
func (t *Tool) render(result *protocol.Result) (text string) {
	if t == nil || t.Render == nil && t.Format == nil {
		return render.JSON(result)
	}
	defer func() {
		if recover() != nil {
			text = render.JSON(result)
		}
	}()
	if t.Format != nil {
		return t.Format.Text(Answer{cmp.Or(t.called, t.Name), t.arguments, result, t.Render})
	}
	return t.Render(result)
}

// Plan decides what a tool call becomes. Any strings will do: name and
// rawArguments are what a model wrote. The error is for the model to read and is one of
//
//   - unknown_tool: the tools that there are, and the likely one;
//   - invalid_tool_arguments: every error, the schema, and what was sent. A Plan function
//     that answers this code has said what is wrong, and the rest is put around it;
//   - tool_panicked: the tool's Plan or Rules function has a bug;
//   - internal: the tool's Plan function returned no plan;
//   - whatever the tool's Plan function answers, as in path_escape.
//
// The tool is set, a copy, whenever its name is known; its [Tool.Text] is that of this call. Of an
// unknown name it is nil, or has no name and nothing but the [Format] of the table.
func (t *Table) Plan(scope Scope, name, rawArguments string) (*Tool, Plan, *protocol.Error) {
	tool, ok := t.Lookup(name)
	if !ok && t.format == nil {
		return nil, Plan{}, t.unknown(name)
	}
	if !ok {
		return &Tool{Format: t.format, called: name, arguments: rawArguments}, Plan{}, t.unknown(name)
	}
	tool.called, tool.arguments = name, rawArguments
	schema := t.entries[name].schema
	arguments, refusal := tool.read(schema, rawArguments)
	if refusal != nil {
		return tool, Plan{}, refusal
	}
	plan, refusal := tool.plan(scope, arguments)
	switch {
	case refusal == nil:
		plan.Pool = cmp.Or(plan.Pool, t.pool)
		return tool, plan, nil
	case refusal.Code == protocol.CodeInvalidArguments:
		refusal = schema.Refusal(name, rawArguments, []string{refusal.Message})
	}
	return tool, Plan{}, refusal
}

// read holds what a model wrote against a schema of the tool and its rules.
func (t *Tool) read(schema *argument.Schema, raw string) (arguments json.RawMessage, refusal *protocol.Error) {
	defer func() {
		if cause := recover(); cause != nil {
			arguments, refusal = nil, panicked(t.Name, cause)
		}
	}()
	return schema.Read(t.Name, raw, t.Rules)
}

// plan calls the tool's Plan function. The code of a tool runs here, in read and in
// render, and so these are where a panic is caught.
func (t *Tool) plan(scope Scope, arguments json.RawMessage) (plan Plan, refusal *protocol.Error) {
	defer func() {
		if cause := recover(); cause != nil {
			plan, refusal = Plan{}, panicked(t.Name, cause)
		}
	}()
	plan, refusal = t.Plan(scope, arguments)
	if refusal == nil && !plan.runnable() {
		return Plan{}, protocol.Errorf(protocol.CodeInternal,
			"The tool %s is broken: it planned nothing that can be run. Your arguments are not the cause; go on without it.", t.Name)
	}
	return plan, refusal
}

// RunInline runs Inline and returns its text: valid UTF-8, which may be more than a model is
// shown. A panic becomes the error tool_panicked.
func (p Plan) RunInline(ctx context.Context) (text string, failure *protocol.Error) {
	if p.Inline == nil {
		return "", protocol.Errorf(protocol.CodeInternal, "The plan is for a worker and cannot be run in place.")
	}
	defer func() {
		if cause := recover(); cause != nil {
			text, failure = "", panicked("", cause)
		}
	}()
	text, failure = p.Inline(ctx)
	if failure != nil && failure.Code == "" {
		failure = &protocol.Error{Code: protocol.CodeToolFailed, Message: failure.Message}
	}
	return prose.Valid(text), failure
}

// panicked is the error of a tool whose own code panicked; name may be "".
func panicked(name string, cause any) *protocol.Error {
	if name != "" {
		name = " " + name
	}
	return protocol.Errorf(protocol.CodePanic,
		"The tool%s is broken, it panicked: %s. Your arguments need not be the cause; do not repeat the call as it is.",
		name, prose.Short(prose.Plain(fmt.Sprint(cause)), 500))
}

// runnable reports whether a plan says exactly one thing to do.
func (p Plan) runnable() bool {
	ways := 0
	for _, set := range []bool{p.Inline != nil, p.Payload != nil, p.Session != nil} {
		if set {
			ways++
		}
	}
	return ways == 1
}

// Place is where in its session a tool call stands.
type Place struct {
	// ID is the id of the call there; "" makes a random one.
	ID protocol.CallID

	Turn  int // from 1
	Step  int // from 1
	Index int // in the step, from 0
}

// Call makes the call that carries the plan to a worker. It is valid. The zero place stands for
// a tool call outside of a step.
//
// Defaults: the scope's whole sandbox, exclusively; delivery rollback; the default
// pool; [protocol.DefaultRunTimeout]. Deadline, QueueTimeout and MaxAttempts
// are left to the caller. The error is "internal": the plan is inline,
// or its tool named resources or limits that no call can have.
func (p Plan) Call(
	scope Scope, at Place, toolCallID, toolName string, issuedAt time.Time,
) (protocol.Call, *protocol.Error) {
	if refusal := p.needsSession(toolName, at); refusal != nil {
		return protocol.Call{}, refusal
	}
	id := cmp.Or(at.ID, wire.RandomCallID())
	resources, refusal := p.uses(scope, id)
	if refusal != nil {
		return protocol.Call{}, refusal
	}
	call := protocol.Call{
		ID: id, SessionID: scope.Session, ToolCallID: toolCallID, Tool: toolName,
		Turn: at.Turn, Step: at.Step, Index: at.Index,
		Pool:       cmp.Or(p.Pool, protocol.DefaultPool),
		Resources:  resources,
		Delivery:   cmp.Or(p.Delivery, protocol.Rollback),
		Retry:      p.Retry,
		IssuedAt:   issuedAt,
		RunTimeout: protocol.MillisOf(cmp.Or(p.Timeout, protocol.DefaultRunTimeout)),
		MinLevel:   p.MinLevel,
		Payload:    p.Payload,
	}
	if err := call.Validate(); err != nil {
		return protocol.Call{}, protocol.Errorf(protocol.CodeInternal,
			"The tool %s is broken: its plan makes no valid call (%v). Your arguments are not the cause; go on without it.", toolName, err)
	}
	return call, nil
}

// uses returns the plan's resources or their default.
func (p Plan) uses(scope Scope, id protocol.CallID) ([]protocol.Use, *protocol.Error) {
	switch {
	case p.Resources == nil:
		return wholeSandbox(scope)
	case len(p.Resources) == 0:
		return []protocol.Use{{Key: protocol.ResourceKey("call/" + string(id)), Access: protocol.Exclusive}}, nil
	default:
		return slices.Clone(p.Resources), nil
	}
}

// wholeSandbox is the exclusive use of all of the scope's sandbox.
func wholeSandbox(scope Scope) ([]protocol.Use, *protocol.Error) {
	return modelpath.Use(scope.Sandbox, "", protocol.Exclusive)
}

// Effect describes all calls of a tool, whatever their arguments. It is a hint for MCP clients;
// only the choice of tools without a session's loop depends on it.
type Effect struct {
	// ReadOnly says that nothing changes.
	ReadOnly bool
	// Hinted means that ReadOnly is an unchecked claim of an MCP server.
	Hinted bool
	// Idempotent says that a second call with the same arguments changes nothing more.
	Idempotent bool
	// Additive means that calls only add: nothing is replaced or removed.
	Additive bool
	// Open says that calls may reach beyond the workspace: other systems, the network.
	Open bool
	// Loop says that calls are answered by a session's loop, as those about its jobs are.
	Loop bool
}
