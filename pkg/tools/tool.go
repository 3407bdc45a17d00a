package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/argument"
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
