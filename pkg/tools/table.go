package tools

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/argument"
)

// maxNameLength bounds the name of a tool, in bytes.
const maxNameLength = 64

// Table is a set of tools with distinct names and working schemas. It never
// changes and is safe for concurrent use.
type Table struct {
	names   []string // sorted
	entries map[string]*entry
	format  *Format // that its tools share
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
	tools = withDialogTools(tools)
	t := &Table{entries: make(map[string]*entry, len(tools)), format: formatOf(tools)}
	var faults []error
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
			faults = append(faults, fmt.Errorf("invalid tool %q: the name is defined more than once: rename one of them", tool.Name))
		}
		compiled, err := check(&tool)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		compiled.Lenient = tool.Lenient
		tool.Schema = slices.Clone(tool.Schema)
		t.entries[tool.Name] = &entry{tool: tool, schema: compiled}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	for name := range t.entries {
		t.names = append(t.names, name)
	}
	slices.Sort(t.names)
	return t, nil
}

// check returns the compiled schema of a usable tool, or all of its faults.
func check(tool *Tool) (*argument.Schema, error) {
	var faults []error
	fault := func(err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("invalid tool %q: %w", tool.Name, err))
		}
	}
	fault(checkName(tool.Name))
	if strings.TrimSpace(tool.Description) == "" {
		fault(errors.New("description: missing"))
	}
	if tool.Plan == nil {
		fault(errors.New("plan: missing"))
	}
	fault(tool.invalid)
	fault(checkNative(tool.Native))
	fault(tool.Revert.check(tool.Schema))
	compiled, err := argument.Compile(tool.Schema)
	if tool.invalid == nil || len(tool.Schema) > 0 { // without one the fault says why
		fault(err)
	}
	return compiled, errors.Join(faults...)
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

// Only returns the table without the tools that have other names.
func (t *Table) Only(names []string) *Table {
	only := &Table{entries: make(map[string]*entry, len(t.names)), format: t.format}
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

// DefinitionsFor returns those of [Table.Definitions] that a model of that provider can
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
