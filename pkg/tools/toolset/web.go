package toolset

import (
	"net/http"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/internal/render"
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
		Definition: definition("web_fetch",
			"Request one page of the web and return it: HTML as Markdown, other text as it is, images as images. "+
				"Only hosts that the operator allows can be reached, no private addresses. Redirects are followed.",
			`{
				"type": "object",
				"properties": {
					"url": {"type": "string", "minLength": 1, "maxLength": 8192, "description": "The address, beginning with http:// or https://."},
					"method": {"type": "string", "enum": ["GET", "HEAD"], "default": "GET", "description": "HEAD returns status and headers only. Default: GET."},
					"headers": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 1000}, "description": "Headers to send: `+strings.Join(wire.FetchHeaders(), ", ")+`. No others are allowed."},
					"raw": {"type": "boolean", "default": false, "description": "Return HTML as it is. Default: false."},
					"max_bytes": {"type": "integer", "minimum": 1, "maximum": 16777216, "description": "How much of the body to read at most. Default: 5 MiB."},
					"timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": 300, "description": "Seconds that the request may take. Default: 30."}
				},
				"required": ["url"],
				"additionalProperties": false
			}`),
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
