// Package mcp makes tools of the servers of the Model Context Protocol that a file names, in the
// format that agents share:
//
//	{"mcpServers": {"fs": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "."]}}}
//
// [Parse] reads it. A fleet asks the servers for their tools, which have names as server__tool, and
// the resources and the delivery that the file gives them, or else the server's hints. Package
// manifest reads a server from a file of its own.
package mcp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// maxBytes bounds a file.
const maxBytes = 1 << 20

// Server is a server, and how its tools are used. Its JSON has what a file has in the property
// "toolfleet" of a server, which other agents pass over.
type Server struct {
	protocol.MCPServer `json:"-"`

	// OAuth is how one logs in to a URL; nil leaves all to the server. A client that logs in by
	// itself is [protocol.MCPServer].Client, too: see [Server.SetOAuth].
	OAuth *OAuth `json:"-"`

	// Workspace says whether the tools touch the workspace. Default: those of programs do, and are
	// ordered with files and commands; those of URLs do not, and run beside them.
	Workspace *bool `json:"workspace,omitempty"`
	// Only are the tools that are offered, by the server's names; nil offers all.
	Only []string `json:"only,omitempty"`
	// Tools are settings of single tools, by the server's names.
	Tools map[string]Rule `json:"tools,omitempty"`
	// Timeout bounds a call, as in "90s"; "" is the default of calls.
	Timeout string `json:"timeout,omitempty"`
	// Pool and MinLevel are those of [tools.Remote].
	Pool     protocol.Pool `json:"pool,omitempty"`
	MinLevel string        `json:"min_level,omitempty"`
}

// Rule is how one tool is used.
type Rule struct {
	// Resources are keys in the session's sandbox; nil means what the server's hints say.
	Resources []tools.Resource `json:"resources,omitempty" yaml:"resources"`
	// Delivery is that of [tools.Remote]; "" means what the server's hints say.
	Delivery protocol.Delivery `json:"delivery,omitempty" yaml:"delivery"`
	// Timeout is that of [Server], for this tool.
	Timeout string `json:"timeout,omitempty" yaml:"timeout"`
	// Revert undoes the effect of a call; nil means that nothing does.
	Revert *Revert `json:"revert,omitempty" yaml:"revert"`
}

// Revert is a [tools.Revert] in a file.
type Revert struct {
	// Tool is another tool of the server, by the server's name, or else a tool of the session.
	Tool      string         `json:"tool" yaml:"tool"`
	Arguments map[string]any `json:"arguments" yaml:"arguments"`
}

// entry is a server in a file. What other agents have there beside it is passed over.
type entry struct {
	Type     string            `json:"type"`
	Command  string            `json:"command"`
	Args     []string          `json:"args"`
	Env      map[string]string `json:"env"`
	Cwd      string            `json:"cwd"`
	URL      string            `json:"url"`
	Headers  map[string]string `json:"headers"`
	OAuth    *OAuth            `json:"oauth"`
	Disabled bool              `json:"disabled"`
	Settings json.RawMessage   `json:"toolfleet"`
}

// Parse reads a file. It returns the servers by name, without those that are disabled, and
// everything that is wrong.
func Parse(content []byte) ([]Server, []error) {
	var file struct {
		Servers map[string]json.RawMessage `json:"mcpServers"` //nolint:tagliatelle // as agents have it
	}
	if len(content) > maxBytes {
		return nil, []error{fmt.Errorf("has %d bytes, at most %d are allowed", len(content), maxBytes)}
	}
	if err := json.Unmarshal(content, &file); err != nil {
		return nil, []error{fmt.Errorf(`must be JSON as {"mcpServers": {NAME: {"command": ...}}}: %w`, err)}
	}
	if file.Servers == nil {
		return nil, []error{errors.New(`"mcpServers": missing`)}
	}
	var servers []Server
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(file.Servers)) {
		server, disabled, wrong := parseServer(name, file.Servers[name])
		for _, err := range wrong {
			errs = append(errs, fmt.Errorf("server %q: %w", name, err))
		}
		if len(wrong) == 0 && !disabled {
			servers = append(servers, server)
		}
	}
	return servers, errs
}

func parseServer(name string, content json.RawMessage) (s Server, disabled bool, errs []error) {
	var e entry
	if err := json.Unmarshal(content, &e); err != nil {
		return s, false, []error{err}
	}
	if e.Settings != nil {
		decoder := json.NewDecoder(bytes.NewReader(e.Settings))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&s); err != nil {
			errs = append(errs, fmt.Errorf("toolfleet: %w", err))
		}
	}
	switch e.Type {
	case "", "stdio", "http", "streamable-http", "streamableHttp":
	default:
		errs = append(errs, fmt.Errorf("type %q: must be stdio or http", e.Type))
	}
	s.MCPServer = protocol.MCPServer{Name: name, Command: e.Command, Args: e.Args, Env: e.Env, Cwd: e.Cwd, URL: e.URL, Headers: e.Headers}
	s.SetOAuth(e.OAuth)
	return s, e.Disabled, append(errs, s.faults()...)
}
