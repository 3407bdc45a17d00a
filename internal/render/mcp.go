package render

import (
	"strings"

	"github.com/toolfleet/toolfleet/internal/plain"
	"github.com/toolfleet/toolfleet/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// MCP is the text of what a tool of an MCP server returned.
func MCP(result *protocol.Result) string {
	value, ok := result.Value.(protocol.MCPCallResult)
	if !ok {
		return JSON(result)
	}
	text := prose.Plain(plain.MCP(value))
	if result.Error != nil && result.Error.Message == text {
		text = "" // it is said once
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + restOf(result).mark("")
	}
	for _, note := range value.Notes {
		text = joined(text, "["+note+"]")
	}
	return outcome(result, strings.TrimSuffix(text, "\n"))
}
