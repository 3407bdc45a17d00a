package wire

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MCPList asks a server which tools it has, and starts it if need be.
type MCPList struct {
	Server protocol.MCPServer `json:"server"`
}

// MCPListResult answers [MCPList].
type MCPListResult struct {
	Tools []MCPTool `json:"tools"`
}

// MCPTool is a tool as a server describes it.
type MCPTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema"`
	// Title is a name for people; it may be empty.
	Title string `json:"title,omitempty"`
	// Output is the JSON Schema of [protocol.MCPCallResult].Structured; nil if the server has none.
	Output json.RawMessage `json:"output_schema,omitempty"`
	// ReadOnly and Idempotent are hints of the server.
	ReadOnly   bool `json:"read_only,omitempty"`
	Idempotent bool `json:"idempotent,omitempty"`
	// Additive says that what a call changes it only adds to, and Closed that it reaches nothing
	// beyond the server: hints of the server.
	Additive bool `json:"additive,omitempty"`
	Closed   bool `json:"closed,omitempty"`
}
