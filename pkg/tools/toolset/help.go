package toolset

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

// helpTools are the tool by which a model reads the full documentation of the tools of its table,
// which plans its calls.
func helpTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true}},
		Definition: tools.Definition{
			Name:        "tool_help",
			Description: "Read the full documentation of a tool: what it does, all of its arguments, and examples where there are any.",
			Schema: json.RawMessage(`{
				"type": "object",
				"properties": {
					"name": {"type": "string", "minLength": 1, "description": "Name of the tool."}
				},
				"required": ["name"],
				"additionalProperties": false
			}`),
		},
	}}
}
