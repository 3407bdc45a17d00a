package mcpserver

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

// callable reports whether a tool works without a session's loop: jobs and stateful tools do not.
func callable(tool *tools.Tool) bool { return !tool.Effect.Loop }

// described is a tool as clients get it.
func described(tool *tools.Tool) *mcp.Tool {
	title := strings.ReplaceAll(tool.Name, "_", " ")
	title = cmp.Or(tool.Title, strings.ToUpper(title[:1])+title[1:])
	destructive, open := !tool.Effect.ReadOnly && !tool.Effect.Additive, tool.Effect.Open
	return &mcp.Tool{
		Name: tool.Name, Title: title, Description: tool.Description, InputSchema: tool.Schema, OutputSchema: outputSchema(tool),
		Annotations: &mcp.ToolAnnotations{
			Title: title, ReadOnlyHint: tool.Effect.ReadOnly, DestructiveHint: &destructive,
			IdempotentHint: tool.Effect.ReadOnly || tool.Effect.Idempotent, OpenWorldHint: &open,
		},
	}
}

// outputSchema is that of [structured], with the value that the tool returns.
func outputSchema(tool *tools.Tool) json.RawMessage {
	return json.RawMessage(strings.Replace(structuredSchema, `"VALUE"`, string(valueSchema(tool)), 1))
}

// structuredSchema is that of [structured].
const structuredSchema = `{
	"type": "object",
	"properties": {
		"status": {"type": "string", "enum": ["ok", "failed", "timeout", "cancelled", "rejected", "outcome_unknown", "working"], "description": "How the call ended; working when it goes on."},
		"error": {"type": "object", "properties": {"code": {"type": "string"}, "message": {"type": "string"}}, "required": ["code", "message"], "description": "Why it is not ok."},
		"call_id": {"type": "string", "description": "The call in the fleet; toolfleet://result/ID is its whole result."},
		"session_id": {"type": "string", "description": "Whose sandbox it used."},
		"worker_id": {"type": "string"},
		"attempt": {"type": "integer", "description": "Which start of the call this is the result of, from 1."},
		"level": {"type": "string", "description": "The isolation that was proven where it ran: none, paths, full or kernel."},
		"queue_ms": {"type": "number"},
		"run_ms": {"type": "number"},
		"value": "VALUE"
	},
	"required": ["status", "session_id"]
}`
