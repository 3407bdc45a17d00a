package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Help returns the tool tool_help, by which a model reads the full documentation of
// the tools of its table.
func Help() []Tool {
	return []Tool{{
		Metadata: Metadata{Effect: Effect{ReadOnly: true}},
		Definition: Definition{
			Name:        "tool_help",
			Description: "Read the full documentation of a tool: what it does, all of its arguments, and examples where there are any.",
			Schema: json.RawMessage(`{
				"type": "object",
				"properties": {
					"name": {"type": "string", "minLength": 1, "description": "Name of the tool."}
				},
				"required": ["name"],
				"additionalProperties": false
			}`),
		},
		planIn: func(t *Table) func(Scope, json.RawMessage) (Plan, *protocol.Error) { return PlanOf(t.planHelp) },
	}}
}

type helpArguments struct {
	Name string `json:"name"`
}

func (t *Table) planHelp(_ Scope, args helpArguments) (Plan, *protocol.Error) {
	text, found := t.Document(args.Name)
	if !found {
		return Plan{}, t.unknown(args.Name)
	}
	return Plan{Inline: func(context.Context) (string, *protocol.Error) { return text, nil }}, nil
}

// Document returns the full documentation of a tool as text: its description, its Help,
// and the schema of its arguments; found is false when there is no such tool.
func (t *Table) Document(name string) (text string, found bool) {
	tool, found := t.Lookup(name)
	if !found {
		return "", false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n%s\n", tool.Name, strings.TrimSpace(tool.Description))
	if help := strings.TrimSpace(tool.Help); help != "" {
		fmt.Fprintf(&b, "\n%s\n", help)
	}
	if len(tool.Native) > 0 {
		b.WriteString("\nIt is run by the model's provider, not by the fleet.\n")
		return b.String(), true
	}
	var schema bytes.Buffer
	if err := json.Indent(&schema, tool.Schema, "", "  "); err != nil {
		schema.Reset()
		schema.Write(tool.Schema)
	}
	fmt.Fprintf(&b, "\nArguments (JSON Schema):\n%s\n", &schema)
	return b.String(), true
}

// Hints returns the tools' hints for the system prompt of a model of that provider, in the order of
// the tools' names, so that equal tables have equal hints; "" without hints.
func (t *Table) Hints(provider string) string {
	var b strings.Builder
	for _, name := range t.names {
		if !t.entries[name].tool.isFor(provider) {
			continue
		}
		if hint := strings.TrimSpace(prose.Valid(t.entries[name].tool.Hint)); hint != "" {
			fmt.Fprintf(&b, "\n- %s: %s", name, hint)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "About the tools:" + b.String()
}

// planNative refuses a call of a tool that the provider runs.
func planNative(name string) func(Scope, json.RawMessage) (Plan, *protocol.Error) {
	return func(Scope, json.RawMessage) (Plan, *protocol.Error) {
		return Plan{}, protocol.Errorf(codes.UnknownTool,
			"The tool %s is run by the model's provider, and cannot be called here. Use it as your provider says, or go on without it.", name)
	}
}

// checkNative reports declarations that no provider can be sent.
func checkNative(native map[string]json.RawMessage) error {
	for _, provider := range slices.Sorted(maps.Keys(native)) {
		var declaration struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(native[provider], &declaration); err != nil || declaration.Type == "" {
			return fmt.Errorf(`native.%s: must be a JSON object with a "type"`, provider)
		}
	}
	return nil
}
