package protocol

import "encoding/json"

// MCPServer is a server of the Model Context Protocol: a program that runs in the session's sandbox
// and speaks on standard input and output, or a URL (streamable HTTP). The worker replaces
// "${NAME}" in the values of Env, Headers and Client, and in URL, by its own variable NAME, if its
// operator allows that; the value is never sent. It replaces "{tools}" in Command and Args by its
// folder of tools, as in [ToolRun].
type MCPServer struct {
	Name    string            `json:"name"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Cwd     string            `json:"cwd,omitempty"` // a directory of the workspace
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// Client logs in to a URL; nil means that the worker uses a login of a person, if it has one.
	Client *MCPClient `json:"client,omitempty"`
}

// MCPClient is a client that an authorization server knows and that no person stands behind
// (OAuth 2.1, client credentials).
type MCPClient struct {
	ID     string `json:"id"`
	Secret string `json:"secret"`
	// Scopes are asked for; none are those that the server names.
	Scopes []string `json:"scopes,omitempty"`
}

// MCPCall calls a tool of a server, which lives in the session's sandbox from call to call.
type MCPCall struct {
	Server MCPServer `json:"server"`
	Tool   string    `json:"tool"`
	// Arguments is a JSON object.
	Arguments json.RawMessage `json:"arguments"`
	// ReadOnly says that the tool changes nothing: a call that was stopped leaves nothing behind
	// that has to be ended with the server.
	ReadOnly bool `json:"read_only,omitempty"`
}

// MCPCallResult answers [MCPCall].
type MCPCallResult struct {
	Content []MCPContent `json:"content"`
	// Structured is the result as JSON, of tools that have one.
	Structured json.RawMessage `json:"structured,omitempty"`
	// IsError means that the tool reported a failure.
	IsError bool `json:"is_error,omitempty"`
	// ToolsChanged says that the server has other tools since it was asked for them.
	ToolsChanged bool `json:"tools_changed,omitempty"`
	// Notes are what the worker has to say about it, a sentence each.
	Notes []string `json:"notes,omitempty"`
}

// MCPContent is a part of what a tool of a server returned. Type is text, image, audio, resource
// (an embedded one) or resource_link.
type MCPContent struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`
	// Data is an image, a sound or a resource that is no text.
	Data      Bytes  `json:"data,omitempty"`
	MediaType string `json:"media_type,omitempty"`
	URI       string `json:"uri,omitempty"`
	Name      string `json:"name,omitempty"`
}
