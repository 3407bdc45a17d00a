package manifest

import (
	"errors"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/toolfleet/toolfleet/internal/system/yamlfile"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/fault"
	"github.com/toolfleet/toolfleet/pkg/tools/mcp"
)

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
			if wrong, is := errors.AsType[fault.Fault](err); is {
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
