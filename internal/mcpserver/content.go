package mcpserver

import (
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/plain"
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

// blocks is what a tool of an MCP server returned, block by block. Where the text that a model
// reads is another one, because it was cut or something was added, that stands for all that is
// text. Data larger than an image may be is left out; the text names it.
func blocks(text string, value protocol.MCPCallResult) []mcp.Content {
	whole := text == strings.TrimSuffix(plain.MCP(value), "\n")
	var all []mcp.Content
	if !whole || len(value.Content) == 0 {
		all = append(all, &mcp.TextContent{Text: text})
	}
	for _, part := range value.Content {
		switch {
		case part.Type == "resource_link":
			all = append(all, &mcp.ResourceLink{URI: part.URI, Name: part.Name, Description: part.Text, MIMEType: part.MediaType})
		case len(part.Data) > tools.MaxImageBytes, len(part.Data) == 0 && !whole: // which the text names, or has
		case part.Type == "text":
			all = append(all, &mcp.TextContent{Text: part.Text})
		case part.Type == "image":
			all = append(all, &mcp.ImageContent{Data: part.Data, MIMEType: part.MediaType})
		case part.Type == "audio":
			all = append(all, &mcp.AudioContent{Data: part.Data, MIMEType: part.MediaType})
		case part.Type == "resource":
			all = append(all, &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: part.URI, MIMEType: part.MediaType, Text: part.Text, Blob: part.Data}})
		}
	}
	return all
}
