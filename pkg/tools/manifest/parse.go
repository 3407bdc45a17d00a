package manifest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

// maxBytes bounds a manifest.
const maxBytes = 256 << 10

// noParameters is the schema of a tool without arguments.
const noParameters = `{"type":"object","properties":{},"additionalProperties":false}`

// document is a manifest.
type document struct {
	Name        string            `yaml:"name"`
	Description string            `yaml:"description"`
	Parameters  yaml.Node         `yaml:"parameters"`
	Command     commandLine       `yaml:"command"`
	Handler     string            `yaml:"handler"`
	Input       yaml.Node         `yaml:"input"`
	Output      string            `yaml:"output"`
	Env         map[string]string `yaml:"env"`
	Resources   []tools.Resource  `yaml:"resources"`
	Delivery    protocol.Delivery `yaml:"delivery"`
	Retry       *retry            `yaml:"retry"`
	Revert      *revert           `yaml:"revert"`
	Timeout     duration          `yaml:"timeout"`
	Pool        protocol.Pool     `yaml:"pool"`
	MinLevel    string            `yaml:"min_level"`
	Background  bool              `yaml:"background"`
	Help        string            `yaml:"help"`
	Hint        string            `yaml:"hint"`
	Native      yaml.Node         `yaml:"native"`
	Kind        string            `yaml:"kind"`
}

// retry says when a call that failed is started again.
type retry struct {
	Attempts int             `yaml:"attempts"`
	Wait     wait            `yaml:"wait"`
	MaxWait  wait            `yaml:"max_wait"`
	Codes    []protocol.Code `yaml:"codes"`
}

func (r *retry) protocol() *protocol.Retry {
	if r == nil {
		return nil
	}
	return &protocol.Retry{
		Attempts: r.Attempts, Wait: protocol.MillisOf(time.Duration(r.Wait.duration)), MaxWait: protocol.MillisOf(time.Duration(r.MaxWait.duration)), Codes: r.Codes,
	}
}

// revert is the tool call that undoes the effect of one.
type revert struct {
	Tool      string    `yaml:"tool"`
	Arguments yaml.Node `yaml:"arguments"`
}

// revert makes the [tools.Revert] of a document; nil without one.
func (m *parser) revert(r *revert) *tools.Revert {
	if r == nil {
		return nil
	}
	arguments := json.RawMessage("{}")
	if !r.Arguments.IsZero() {
		encoded, ok := m.json("revert: arguments", &r.Arguments)
		if !ok {
			return nil
		}
		arguments = encoded
	}
	return &tools.Revert{Tool: r.Tool, Arguments: arguments}
}

// commandLine is a program and its arguments; a single text is run by the shell.
type commandLine []string

// UnmarshalYAML implements [yaml.Unmarshaler].
func (c *commandLine) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!str" {
		*c = commandLine{"sh", "-c", node.Value}
		return nil
	}
	var argv []string
	if err := node.Decode(&argv); err != nil {
		return errorAt(node, "command: must be a list of texts, as in [python3, count.py], or a text for the shell")
	}
	*c = argv
	return nil
}

// duration is a time as Go writes it, "90s" or "2m".
type duration time.Duration

// UnmarshalYAML implements [yaml.Unmarshaler].
func (d *duration) UnmarshalYAML(node *yaml.Node) error {
	return d.parse("timeout", node)
}

func (d *duration) parse(what string, node *yaml.Node) error {
	parsed, err := time.ParseDuration(node.Value)
	if err != nil || parsed <= 0 {
		return errorAt(node, fmt.Sprintf("%s %q: must be a time such as 90s or 2m", what, node.Value))
	}
	*d = duration(parsed)
	return nil
}

// wait is a duration of retry.
type wait struct{ duration }

// UnmarshalYAML implements [yaml.Unmarshaler].
func (w *wait) UnmarshalYAML(node *yaml.Node) error { return w.parse("retry", node) }

// error is an error of a field's own, after which the library goes on with the others.
func errorAt(node *yaml.Node, message string) error {
	return &yaml.TypeError{Errors: []string{yamlfile.Error{Line: node.Line, Message: message}.Error()}}
}

// Parse makes a tool of a manifest, or says everything that is wrong with it. file is
// its name in the problems. Manifests of kind mcp make no tool.
func Parse(file string, content []byte) (tools.Tool, []Problem) {
	m := &parser{file: file, lines: map[string]int{}}
	var doc document
	if !m.decode(content, &doc) {
		return tools.Tool{}, m.problems
	}
	if doc.Kind != "" {
		m.problem(m.lines["kind"], "kind %q: must be %s; a manifest without it is that of a tool", doc.Kind, kindMCP)
	}
	decoding := slices.Clone(m.problems)
	tool := m.tool(doc)
	tool.Help, tool.Hint, tool.Revert = doc.Help, doc.Hint, m.revert(doc.Revert)
	if !slices.ContainsFunc(m.problems, aboutTheWhole) && (tool.Plan != nil || len(tool.Native) > 0) {
		_, err := tools.NewTable(tool)
		m.table(doc.Name, err)
	}
	return tool, m.found(decoding)
}

// found are the problems in the order of their lines, without the ones that only follow from
// problems of the decoding.
func (m *parser) found(decoding []Problem) []Problem {
	m.problems = slices.DeleteFunc(m.problems, func(p Problem) bool { return follows(p, decoding) })
	slices.SortStableFunc(m.problems, func(a, b Problem) int { return a.Line - b.Line })
	return m.problems
}

// aboutTheWhole reports whether a problem is of no field: something is missing.
func aboutTheWhole(p Problem) bool { return p.Line <= 1 }

// follows reports whether a problem may be there only because some fields could not be read.
func follows(p Problem, decoding []Problem) bool {
	if len(decoding) == 0 || slices.Contains(decoding, p) {
		return false
	}
	return aboutTheWhole(p) || slices.ContainsFunc(decoding, func(d Problem) bool { return d.Line == p.Line })
}

// parser collects the problems of one manifest.
type parser struct {
	file     string
	lines    map[string]int // of the fields
	top      *yaml.Node     // the mapping that has them
	problems []Problem
}

func (m *parser) problem(line int, format string, args ...any) {
	m.problems = append(m.problems, Problem{File: m.file, Line: line, Message: fmt.Sprintf(format, args...)})
}

// decode reads the YAML into a document; ok is false when nothing more can be said about it.
func (m *parser) decode(content []byte, doc any) (ok bool) {
	if len(content) > maxBytes {
		m.problem(0, "has %d bytes, at most %d are allowed", len(content), maxBytes)
		return false
	}
	root, errs := yamlfile.Mapping(content)
	if root == nil {
		if len(errs) == 0 || strings.HasPrefix(errs[0].Message, "must be a mapping") {
			errs = []yamlfile.Error{{Line: 1, Message: "must be a mapping with the fields " + strings.Join(yamlfile.Fields(reflect.TypeOf(doc).Elem()), ", ")}}
		}
		m.yaml(errs)
		return false
	}
	m.top = root
	for key := range yamlfile.Pairs(root) {
		m.lines[key.Value] = key.Line
	}
	m.yaml(yamlfile.Decode(content, doc))
	return true
}

// yaml reports errors of the file.
func (m *parser) yaml(errs []yamlfile.Error) {
	for _, failure := range errs {
		m.problem(failure.Line, "%s", failure.Message)
	}
}

// json is the JSON of a field; ok is false after a problem.
func (m *parser) json(field string, node *yaml.Node) (encoded json.RawMessage, ok bool) {
	encoded, err := yamlfile.JSON(node)
	if failure, is := errors.AsType[yamlfile.Error](err); is {
		m.problem(failure.Line, "%s: %s", field, failure.Message)
	}
	return encoded, err == nil
}

// tool makes the tool of a document.
func (m *parser) tool(doc document) tools.Tool {
	definition := tools.Definition{Name: doc.Name, Description: doc.Description, Schema: json.RawMessage(noParameters)}
	if m.lines["parameters"] > 0 {
		schema, ok := m.json("parameters", &doc.Parameters)
		if !ok {
			return tools.Tool{}
		}
		definition.Schema = schema
	}
	if m.lines["resources"] > 0 && doc.Resources == nil {
		doc.Resources = []tools.Resource{}
	}
	remote := tools.Remote{
		Kind: protocol.Kind(doc.Handler), Resources: doc.Resources, Delivery: doc.Delivery, Retry: doc.Retry.protocol(),
		Timeout: time.Duration(doc.Timeout), Pool: doc.Pool, MinLevel: doc.MinLevel, Background: doc.Background,
	}
	switch doc.Output {
	case "", "json", "text":
	default:
		m.problem(m.lines["output"], "output %q: must be json or text", doc.Output)
	}
	if m.lines["native"] > 0 {
		return m.native(doc, definition)
	}
	hasCommand, hasHandler := m.lines["command"] > 0, m.lines["handler"] > 0
	switch {
	case hasCommand == hasHandler:
		m.problem(max(m.lines["handler"], 1), "exactly one of command (a program) and handler (a kind that workers of yours execute) must be given")
	case hasHandler && (m.lines["output"] > 0 || m.lines["env"] > 0):
		m.problem(m.lines["handler"], "output and env are of commands, not of handlers")
	case hasCommand && m.lines["input"] > 0:
		m.problem(m.lines["input"], "input is of handlers that are stateful tools, not of commands")
	case m.lines["input"] > 0:
		return m.stateful(doc, remote, definition)
	case hasHandler:
		return remote.Tool(definition)
	}
	return remote.CommandTool(definition, protocol.ToolRun{Argv: doc.Command, Env: doc.Env, Text: doc.Output == "text"})
}

// stateful makes a tool that answers several calls.
func (m *parser) stateful(doc document, remote tools.Remote, definition tools.Definition) tools.Tool {
	input, ok := m.json("input", &doc.Input)
	if !ok {
		return tools.Tool{}
	}
	return remote.StatefulTool(definition, input)
}

// native makes a tool that the model's provider runs.
func (m *parser) native(doc document, definition tools.Definition) tools.Tool {
	for _, field := range []string{
		"command", "handler", "input", "output", "env", "resources", "delivery", "retry", "revert", "timeout", "pool", "min_level", "background",
	} {
		if m.lines[field] > 0 {
			m.problem(m.lines[field], "%s: a native tool is run by the model's provider, not by a worker", field)
		}
	}
	encoded, ok := m.json("native", &doc.Native)
	if !ok {
		return tools.Tool{}
	}
	if err := json.Unmarshal(encoded, &definition.Native); err != nil || len(definition.Native) == 0 {
		m.problem(m.lines["native"], "native: must be declarations by provider, as in {openai: {type: web_search}}")
	}
	return tools.Tool{Definition: definition}
}

// kindMCP is the kind of a manifest that names a server of the Model Context Protocol.
const kindMCP = "mcp"

// serverDocument is a manifest of kind mcp: what [mcp.Parse] reads of a server, and its settings
// beside it.
type serverDocument struct {
	Kind      string              `yaml:"kind"`
	Name      string              `yaml:"name"`
	Command   string              `yaml:"command"`
	Args      []string            `yaml:"args"`
	Env       map[string]string   `yaml:"env"`
	Cwd       string              `yaml:"cwd"`
	URL       string              `yaml:"url"`
	Headers   map[string]string   `yaml:"headers"`
	OAuth     *mcp.OAuth          `yaml:"oauth"`
	Workspace *bool               `yaml:"workspace"`
	Only      []string            `yaml:"only"`
	Tools     map[string]mcp.Rule `yaml:"tools"`
	Timeout   string              `yaml:"timeout"`
	Pool      protocol.Pool       `yaml:"pool"`
	MinLevel  string              `yaml:"min_level"`
}

// isServer reports whether a manifest is of kind mcp.
func isServer(content []byte) bool {
	var document struct {
		Kind yaml.Node `yaml:"kind"`
	}
	return yaml.Unmarshal(content, &document) == nil && document.Kind.Value == kindMCP
}

// parseServer makes a server of a manifest of kind mcp, as [Parse] makes a tool of others.
func parseServer(file string, content []byte) (mcp.Server, []Problem) {
	m := &parser{file: file, lines: map[string]int{}}
	var doc serverDocument
	if !m.decode(content, &doc) {
		return mcp.Server{}, m.problems
	}
	decoding := slices.Clone(m.problems)
	if doc.Kind != kindMCP {
		m.problem(max(m.lines["kind"], 1), "kind %q: must be %s", doc.Kind, kindMCP)
	}
	if m.lines["only"] > 0 && doc.Only == nil {
		doc.Only = []string{}
	}
	server := mcp.Server{
		MCPServer: protocol.MCPServer{
			Name: doc.Name, Command: doc.Command, Args: doc.Args, Env: doc.Env, Cwd: doc.Cwd, URL: doc.URL, Headers: doc.Headers,
		},
		Workspace: doc.Workspace, Only: doc.Only, Tools: doc.Tools, Timeout: doc.Timeout, Pool: doc.Pool, MinLevel: doc.MinLevel,
	}
	server.SetOAuth(doc.OAuth)
	if all, is := server.Validate().(interface{ Unwrap() []error }); is {
		for _, err := range all.Unwrap() {
			if wrong, is := errors.AsType[yamlfile.FieldError](err); is {
				m.problem(m.lineAt(wrong.At), "%s", wrong.Message)
			}
		}
	}
	return server, m.found(decoding)
}

// lineAt is the line of the field at a JSON pointer, or of what it should be in.
func (m *parser) lineAt(pointer string) int {
	node := yamlfile.At(m.top, pointer)
	if node == m.top { // it is missing
		return 1
	}
	return node.Line
}
