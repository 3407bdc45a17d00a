package tools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The tools by which a model goes on with the handles of stateful tools. [NewTable] adds
// them to every table that has a stateful tool.
const (
	continueTool = "tool_continue"
	endTool      = "tool_end"
)

// Opened is the tool call that opened a dialog.
type Opened struct {
	Tool      string
	Arguments string // as the model wrote them
	Place     Place  // with the call's ID
}

// NewStateful makes a tool that answers several calls: the first answer comes with a handle, with
// which the model calls tool_continue for the next, until the tool or the model (tool_end) ends it.
// Workers need a handler for its kind ([github.com/toolfleet/toolfleet/pkg/worker.HandleStateful]).
// Args are the arguments of the first call, as in [NewRemote]; Input is what each further one
// brings, of any type that has a schema. The description is extended by how to go on.
//
// All calls of a dialog use the resources of the first one, exclusively, and so have an order; go
// to the worker that has the state; and are bound by the policy for this tool. Later calls are
// at_most_once: [Remote].Delivery is for the first call. A dialog ends when its worker stops or is
// lost; the next call then fails and says so.
func NewStateful[Args, Input any](name, description string, remote Remote) Tool {
	arguments, err := schemaOf[Args]()
	inferred, inputErr := jsonschema.For[Input](nil)
	if err = errors.Join(err, inputErr); err != nil {
		return Tool{Definition: Definition{Name: name, Description: description}, invalid: err}
	}
	input, err := json.Marshal(inferred)
	if err != nil {
		return Tool{Definition: Definition{Name: name, Description: description}, invalid: fmt.Errorf("input: %w", err)}
	}
	return remote.StatefulTool(Definition{Name: name, Description: description, Schema: arguments}, input)
}

// StatefulTool is [NewStateful] for schemas that are at hand.
func (r Remote) StatefulTool(definition Definition, input json.RawMessage) Tool {
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return wire.DialogOpen{Tool: r.Kind, Arguments: arguments}, nil
	})
	_, err := wire.ParseUserKind(string(r.Kind))
	tool.invalid = errors.Join(tool.invalid, err)
	for _, resource := range r.Resources {
		if resource.Access == protocol.Shared {
			tool.invalid = errors.Join(tool.invalid, fmt.Errorf("resources: %s: a stateful tool uses its resources exclusively", resource.Key))
		}
	}
	if r.Background {
		tool.invalid = errors.Join(tool.invalid, errors.New("background: a stateful tool cannot be a job"))
	}
	tool.input, err = inputSchema(input)
	tool.invalid = errors.Join(tool.invalid, err)
	tool.Render, tool.Effect.Loop = render.Dialog, true
	var compact bytes.Buffer
	if json.Compact(&compact, input) == nil {
		tool.Description += fmt.Sprintf("\nIt keeps its state: the answer names a handle. Go on with %s, whose input must be of this schema: %s",
			continueTool, compact.String())
	}
	return tool
}

// inputSchema is the schema of the arguments of tool_continue for a tool whose inputs
// have the given one. The input may be left out if null or an empty object would do.
func inputSchema(input json.RawMessage) (*argument.Schema, error) {
	var document any
	if err := json.Unmarshal(input, &document); err != nil {
		return nil, fmt.Errorf("input: schema: not JSON: %w", err)
	}
	if object, is := document.(map[string]any); is && bytes.Contains(input, []byte(`"$ref"`)) && object["$id"] == nil {
		object["$id"] = "tool:///input.json" // so that its references stay inside
	}
	compile := func(required ...string) (*argument.Schema, error) {
		raw, err := json.Marshal(map[string]any{
			"type": "object", "properties": map[string]any{"handle": map[string]any{"type": "string"}, "input": document},
			"required": required, "additionalProperties": false,
		})
		if err != nil {
			return nil, err
		}
		return argument.Compile(raw)
	}
	schema, err := compile("handle", "input")
	if err != nil {
		return nil, fmt.Errorf("input: %s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	for _, nothing := range []string{"null", "{}"} {
		if _, refusal := schema.Read(continueTool, `{"handle":"h","input":`+nothing+`}`, nil); refusal == nil {
			return compile("handle")
		}
	}
	return schema, nil
}

// Continue plans a call that continues a dialog, or ends it. rawArguments are the arguments as the
// model wrote them. The tool is the one that opened the dialog; it renders the result. The error is
// for the model to read.
func (t *Table) Continue(scope Scope, opened Opened, end bool, rawArguments string) (*Tool, Plan, *protocol.Error) {
	tool, plan, refusal := t.Plan(scope, opened.Tool, opened.Arguments)
	if refusal != nil || tool.input == nil {
		return nil, Plan{}, protocol.Errorf(protocol.CodeStateLost,
			"The tool %s of this handle is not there any more, or is another one by now. Go on without it.", opened.Tool)
	}
	id := opened.Place.ID
	if plan.Resources, refusal = plan.uses(scope, id); refusal != nil {
		return tool, Plan{}, refusal
	}
	if end {
		plan.Payload, plan.Delivery = wire.DialogEnd{Dialog: id}, protocol.Idempotent
		return tool, plan, nil
	}
	arguments, refusal := tool.input.Read(continueTool, rawArguments, nil)
	if refusal != nil {
		return tool, Plan{}, refusal
	}
	var given struct {
		Input json.RawMessage `json:"input"`
	}
	if err := json.Unmarshal(arguments, &given); err != nil {
		return tool, Plan{}, tool.input.Refusal(continueTool, rawArguments, []string{err.Error()})
	}
	plan.Payload, plan.Delivery = wire.DialogContinue{Dialog: id, Input: given.Input}, protocol.AtMostOnce
	return tool, plan, nil
}

// continueTools are tool_continue and tool_end.
func continueTools() []Tool {
	const handle = `"handle": {"type": "string", "minLength": 1, "description": "Handle that the tool's first answer named."}`
	session := Metadata{Effect: Effect{Loop: true}}
	further := Tool{Metadata: session, Plan: planContinue(false), Rules: continueRules, Definition: Definition{
		Name: continueTool,
		Description: "Go on with a tool that keeps its state: give it the next input, and get its next answer. " +
			"The calls for one handle run in the order in which you make them.",
		Schema: json.RawMessage(`{"type": "object", "properties": {` + handle +
			`, "input": {"description": "Input for the tool, of the schema in its description."}}, "required": ["handle"]}`),
	}}
	end := Define(endTool, "End a tool that keeps its state, when you do not need it any more. Its handle cannot be used again.", handle, "handle")
	return []Tool{further, {Metadata: session, Plan: planContinue(true), Definition: end}}
}

func planContinue(end bool) func(Scope, json.RawMessage) (Plan, *protocol.Error) {
	return func(_ Scope, raw json.RawMessage) (Plan, *protocol.Error) {
		var args struct {
			Handle string `json:"handle"`
		}
		if err := json.Unmarshal(raw, &args); err != nil {
			return Plan{}, notDecoded(err)
		}
		return Plan{Session: wire.DialogRequest{Handle: args.Handle, End: end}}, nil
	}
}

// continueRules is about arguments that name no handle. With a handle the tool is known,
// and [Table.Continue] finds every error, also of the input.
func continueRules(arguments map[string]any) []string {
	if handle, _ := arguments["handle"].(string); handle != "" {
		return nil
	}
	var problems []string
	for name := range arguments {
		if name != "handle" && name != "input" {
			problems = append(problems, prose.Short(name, 200)+": there is no such property; allowed are handle, input")
		}
	}
	return problems
}

// withStatefulTools adds the tools about handles where one of the tools needs them. Their
// names are taken in any case.
func withStatefulTools(all []Tool) []Tool {
	for i := range all {
		if all[i].Name == continueTool || all[i].Name == endTool {
			all = slices.Clone(all)
			all[i].invalid = errors.Join(all[i].invalid, errors.New("the name is that of a tool about handles"))
		}
	}
	for i := range all {
		if all[i].input != nil {
			return append(append(make([]Tool, 0, len(all)+2), all...), continueTools()...)
		}
	}
	return all
}

// needsSession says why a plan cannot be carried out outside of a session; nil when it can.
func (p Plan) needsSession(tool string, at Place) *protocol.Error {
	_, opens := p.Payload.(wire.DialogOpen)
	_, continues := p.Session.(wire.DialogRequest)
	switch {
	case continues, opens && at.Turn == 0:
		return protocol.Errorf(protocol.CodeInternal, "The tool %s keeps its state in a session, and works only there.", tool)
	case p.Session != nil:
		return protocol.Errorf(protocol.CodeInternal, "The tool %s belongs to the turns of a session, and works only there.", tool)
	default:
		return nil
	}
}
