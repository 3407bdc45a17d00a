package mcpserver

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ownAnswer is what a tool of the user's own answers that speaks the protocol itself: its output is
// an object whose "content" is a list of text, images, audio and resources, as a result of
// tools/call has it. It is nil for every other output.
func ownAnswer(value protocol.Value) *mcp.CallToolResult {
	var output json.RawMessage
	switch v := value.(type) {
	case protocol.UnknownValue:
		output, _ = v.Output()
	case protocol.ToolRunResult:
		output = v.Output
	}
	var has struct {
		Content []json.RawMessage `json:"content"`
	}
	if json.Unmarshal(output, &has) != nil || len(has.Content) == 0 {
		return nil
	}
	var answer mcp.CallToolResult
	if json.Unmarshal(output, &answer) != nil {
		return nil
	}
	return &answer
}
