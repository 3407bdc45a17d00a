package tools

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/argument"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxNameLength bounds the name of a tool, in bytes.
const maxNameLength = 64

// Table is a set of tools with distinct names and working schemas. It never
// changes and is safe for concurrent use.
type Table struct {
	names   []string // sorted
	entries map[string]*entry
	format  *Format // that its tools share
	pool    protocol.Pool
}

// entry is a tool with what was worked out about it once.
type entry struct {
	tool   Tool
	schema *argument.Schema
}

// NewTable checks the tools and makes a table of them. It reports every error,
// joined, each with the name of its tool: a name that is malformed or there twice, an empty
// description, a schema that does not compile or is not of type "object", a missing Plan. Where one
// of them is stateful, tool_continue and tool_end are added.
func NewTable(tools ...Tool) (*Table, error) {
	tools = withStatefulTools(tools)
	t := &Table{entries: make(map[string]*entry, len(tools)), format: formatOf(tools)}
	var errs []error
	seen := make(map[string]int, len(tools))
	for i := range tools {
		tool := tools[i]
		if tool.planIn != nil {
			tool.Plan = tool.planIn(t)
		}
		if tool.own && tool.input == nil && tool.Format == nil {
			tool.Format = t.format
		}
		if len(tool.Native) > 0 {
			tool.Plan, tool.Native = planNative(tool.Name), maps.Clone(tool.Native)
			if len(tool.Schema) == 0 {
				tool.Schema = json.RawMessage(`{"type":"object"}`)
			}
		}
		seen[tool.Name]++
		if seen[tool.Name] == 2 {
			errs = append(errs, fmt.Errorf("invalid tool %q: the name is defined more than once: rename one of them", tool.Name))
		}
		compiled, err := check(&tool)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		compiled.Lenient = tool.Lenient
		tool.Schema = slices.Clone(tool.Schema)
		t.entries[tool.Name] = &entry{tool: tool, schema: compiled}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	for name := range t.entries {
		t.names = append(t.names, name)
	}
	slices.Sort(t.names)
	return t, nil
}

// check returns the compiled schema of a usable tool, or all of its errors.
func check(tool *Tool) (*argument.Schema, error) {
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("invalid tool %q: %w", tool.Name, err))
		}
	}
	add(checkName(tool.Name))
	if strings.TrimSpace(tool.Description) == "" {
		add(errors.New("description: missing"))
	}
	if tool.Plan == nil {
		add(errors.New("plan: missing"))
	}
	add(tool.invalid)
	add(checkNative(tool.Native))
	add(tool.Revert.check(tool.Schema))
	compiled, err := argument.Compile(tool.Schema)
	if tool.invalid == nil || len(tool.Schema) > 0 { // without one the error says why
		add(err)
	}
	return compiled, errors.Join(errs...)
}

func checkName(name string) error {
	if name == "" || len(name) > maxNameLength {
		return fmt.Errorf("name: must have 1 to %d characters", maxNameLength)
	}
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return fmt.Errorf("name: character %q at %d: only a-z, A-Z, 0-9, '_' and '-' are allowed", c, i)
		}
	}
	return nil
}

// Names returns the names of the tools, sorted.
func (t *Table) Names() []string { return slices.Clone(t.names) }

// InPool returns the table with a pool for the calls of tools that name none, instead of
// [protocol.DefaultPool].
func (t *Table) InPool(pool protocol.Pool) *Table {
	in := *t
	in.pool = pool
	return &in
}

// Only returns the table without the tools that have other names.
func (t *Table) Only(names []string) *Table {
	only := &Table{entries: make(map[string]*entry, len(t.names)), format: t.format, pool: t.pool}
	for _, name := range t.names {
		if slices.Contains(names, name) {
			only.names, only.entries[name] = append(only.names, name), t.entries[name]
		}
	}
	return only
}

// Definitions returns the tools as a model gets them, sorted by name. The caller
// owns what it gets.
func (t *Table) Definitions() []Definition {
	definitions := make([]Definition, 0, len(t.names))
	for _, name := range t.names {
		definition := t.entries[name].tool.Definition
		definition.Schema, definition.Native = slices.Clone(definition.Schema), maps.Clone(definition.Native)
		definitions = append(definitions, definition)
	}
	return definitions
}

// DefinitionsFor returns the definitions of [Table.Definitions] that a model of the provider can
// have: without the native tools of others. "" has none that are native.
func (t *Table) DefinitionsFor(provider string) []Definition {
	return slices.DeleteFunc(t.Definitions(), func(d Definition) bool { return !d.isFor(provider) })
}

// Lookup returns a copy of the tool of that name, and whether there is one.
func (t *Table) Lookup(name string) (*Tool, bool) {
	e, ok := t.entries[name]
	if !ok {
		return nil, false
	}
	tool := e.tool
	return &tool, true
}

// unknown is the answer to a name that is not in the table.
func (t *Table) unknown(name string) *protocol.Error {
	shown := prose.Short(prose.Valid(name), 2*maxNameLength)
	if len(t.names) == 0 {
		return protocol.Errorf(codes.UnknownTool, "There is no tool %q: no tools are available. Answer without tools.", shown)
	}
	hint := ""
	if near, ok := prose.Nearest(name, t.names); ok {
		hint = fmt.Sprintf(" Did you mean %q?", near)
	}
	return protocol.Errorf(codes.UnknownTool, "There is no tool %q.%s The tools are: %s.",
		shown, hint, strings.Join(t.names, ", "))
}

// Help returns the tool tool_help, by which a model reads the full documentation of
// the tools of its table.
func Help() []Tool {
	return []Tool{{
		Metadata: Metadata{Effect: Effect{ReadOnly: true}},
		Definition: Define("tool_help", "Read the full documentation of a tool: what it does, all of its arguments, and examples where there are any.",
			`"name": {"type": "string", "minLength": 1, "description": "Name of the tool."}`, "name"),
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
