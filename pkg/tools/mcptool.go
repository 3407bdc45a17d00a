package tools

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MCPTool makes the tool of a server of the Model Context Protocol, which lives in the session's
// sandbox: resources must be of it. Kind is not used. readOnly is what the server says of the tool.
// What cannot be a tool is reported by [NewTable].
func (r Remote) MCPTool(definition Definition, server protocol.MCPServer, name string, readOnly bool) Tool {
	tool := r.planned(definition, func(arguments json.RawMessage) (protocol.Payload, error) {
		return protocol.MCPCall{Server: server, Tool: name, Arguments: arguments, ReadOnly: readOnly}, nil
	})
	tool.Render, tool.Returns = render.MCP, []protocol.Value{protocol.MCPCallResult{}}
	return tool
}
