package plain

import (
	"cmp"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MCP is what a tool of an MCP server returned, as text: its structured result where it said
// nothing else.
func MCP(v protocol.MCPCallResult) string {
	var parts []string
	for _, part := range v.Content {
		if text := mcpPart(part); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 && string(v.Structured) != "null" {
		return string(v.Structured)
	}
	return strings.Join(parts, "\n")
}

func mcpPart(part protocol.MCPContent) string {
	switch part.Type {
	case "text":
		return part.Text
	case "resource_link":
		text := fmt.Sprintf("[resource %s %s]", part.URI, part.Name)
		if part.Text != "" {
			text += " " + part.Text
		}
		return text
	case "resource":
		if len(part.Data) == 0 {
			return fmt.Sprintf("[resource %s]\n%s", part.URI, part.Text)
		}
		fallthrough
	default:
		if strings.HasPrefix(part.MediaType, "image/svg") && utf8.Valid(part.Data) { // no image for models, but text
			return fmt.Sprintf("[%s %s]\n%s", part.Type, part.MediaType, part.Data)
		}
		return strings.TrimSpace(fmt.Sprintf("[%s %s, %d bytes %s", part.Type, cmp.Or(part.MediaType, "of no known type"), len(part.Data), part.URI)) + "]"
	}
}
