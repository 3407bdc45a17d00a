package toolset

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// nativeTool returns a tool that a model's provider runs, declared to each provider that has it.
// What it does happens outside of the fleet; images that it makes become files.
func nativeTool(name, description string, declared map[string]string) []tools.Tool {
	native := make(map[string]json.RawMessage, len(declared))
	for provider, declaration := range declared {
		native[provider] = json.RawMessage(declaration)
	}
	return []tools.Tool{{
		Metadata:   tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: tools.Definition{Name: name, Description: description, Native: native, Schema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)},
		Render:     render.Of(render.Write),
	}}
}

func searchTools() []tools.Tool {
	return nativeTool("web_search", "Search the web, by the model's provider.", map[string]string{
		"openai":    `{"type":"web_search"}`,
		"anthropic": `{"type":"web_search_20250305","name":"web_search"}`,
		"google":    `{"type":"googleSearch"}`,
	})
}

func codeTools() []tools.Tool {
	return nativeTool("code_execution", "Run code in a sandbox of the model's provider, without the files of the workspace.", map[string]string{
		"openai":    `{"type":"code_interpreter","container":{"type":"auto"}}`,
		"anthropic": `{"type":"code_execution_20250825","name":"code_execution"}`,
		"google":    `{"type":"codeExecution"}`,
	})
}

func imageTools() []tools.Tool {
	return nativeTool("image_generation", "Make an image, by the model's provider. It is stored in the workspace, in the directory generated.", map[string]string{
		"openai": `{"type":"image_generation"}`,
	})
}
