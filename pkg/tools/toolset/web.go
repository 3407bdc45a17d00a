package toolset

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// webTimeout is the time limit of a request when the call names none, and its redirects.
const webTimeout = 30 * time.Second

// webTools returns the tool that requests pages of the web: web_fetch. The worker sends the
// requests under its network rules for sandboxes, so the tool reaches no host that they do
// not list. A request touches no file, so it runs alongside every other call.
func webTools() []tools.Tool {
	return []tools.Tool{{
		Metadata: tools.Metadata{Effect: tools.Effect{ReadOnly: true, Open: true}, Returns: []protocol.Value{protocol.HTTPFetchResult{}}},
		Definition: tools.Define("web_fetch",
			"Request one page of the web and return it: HTML as Markdown, other text as it is, images as images. "+
				"Only hosts that the operator allows can be reached, no private addresses. Redirects are followed.",
			`"url": {"type": "string", "minLength": 1, "maxLength": 8192, "description": "The address, beginning with http:// or https://."},
				"method": {"type": "string", "enum": ["GET", "HEAD"], "default": "GET", "description": "HEAD returns status and headers only. Default: GET."},
				"headers": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1000}, "description": "Headers to send: `+
				strings.Join(wire.FetchHeaders(), ", ")+`. No others are allowed."},
				"raw": {"type": "boolean", "default": false, "description": "Return HTML as it is. Default: false."},
				"max_bytes": {"type": "integer", "minimum": 1, "maximum": 16777216, "description": "How much of the body to read at most. Default: 5 MiB."},
				"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 300, "description": "Seconds that the request may take. Default: 30."}`, "url"),
		Plan:   tools.PlanOf(planFetch),
		Render: render.Cut(render.Fetch),
	}}
}

type fetchArguments struct {
	URL      string            `json:"url"`
	Method   string            `json:"method"`
	Headers  map[string]string `json:"headers"`
	Raw      bool              `json:"raw"`
	MaxBytes int64             `json:"max_bytes"`
	Timeout  float64           `json:"timeout"`
}

func planFetch(_ tools.Scope, args fetchArguments) (tools.Plan, *protocol.Error) {
	payload := protocol.HTTPFetch{URL: args.URL, Method: args.Method, Headers: args.Headers, Raw: args.Raw, MaxBytes: args.MaxBytes}
	if payload.Method == http.MethodGet {
		payload.Method = ""
	}
	if err := wire.CheckFetch(payload); err != nil {
		return tools.Plan{}, err
	}
	return tools.Plan{
		Payload: payload, Resources: []protocol.Use{}, Delivery: protocol.Idempotent, Timeout: seconds(args.Timeout, webTimeout),
	}, nil
}

// nativeTool returns a tool that a model's provider runs, declared to each provider that has it.
// What it does happens outside of the fleet; images that it makes become files.
func nativeTool(name, description string, declared map[string]string) []tools.Tool {
	definition := tools.Define(name, description, "")
	definition.Native = make(map[string]json.RawMessage, len(declared))
	for provider, declaration := range declared {
		definition.Native[provider] = json.RawMessage(declaration)
	}
	return []tools.Tool{{
		Metadata:   tools.Metadata{Effect: tools.Effect{Open: true}},
		Definition: definition,
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
