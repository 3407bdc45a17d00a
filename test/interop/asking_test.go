//nolint:staticcheck // older clients have what is deprecated
package interop

import (
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// before is what a server does before a call goes to the fleet.
type before = func(*mcp.Server, *mcp.CallToolRequest) (*mcp.CallToolResult, any, error)

// ask asks a client something by one request, and gives its answer to the call.
func ask(question func(*mcp.CallToolRequest) mcp.InputRequest) before {
	return func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
		if answer := request.Params.InputResponses["question"]; answer != nil {
			return nil, answered(answer), nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"question": question(request)}}, nil, nil
	}
}

// answered is an answer in words.
func answered(answer mcp.InputResponse) string {
	switch a := answer.(type) {
	case *mcp.ElicitResult:
		return fmt.Sprintf("action=%s, content=%v", a.Action, a.Content)
	case *mcp.CreateMessageWithToolsResult:
		for _, content := range a.Content {
			if said, ok := content.(*mcp.TextContent); ok {
				return said.Text
			}
		}
	case *mcp.CreateMessageResult:
		if said, ok := a.Content.(*mcp.TextContent); ok {
			return said.Text
		}
	case *mcp.ListRootsResult:
		return fmt.Sprintf("%d roots", len(a.Roots))
	}
	return fmt.Sprintf("%T", answer)
}

// form asks for a form to be filled in.
func form(message, schema string) func(*mcp.CallToolRequest) mcp.InputRequest {
	return func(*mcp.CallToolRequest) mcp.InputRequest {
		return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(schema)}
	}
}

// argument is a text among the arguments of a call.
func argument(request *mcp.CallToolRequest, name string) string {
	given := map[string]any{}
	_ = json.Unmarshal(request.Params.Arguments, &given) // the table of tools reports what is no JSON
	value, _ := given[name].(string)
	return value
}

// askingTools are those that ask the client before their call goes to the fleet.
func askingTools() map[string]fixtureTool {
	return map[string]fixtureTool{
		"test_sampling": {
			schema: `{"type": "object", "properties": {"prompt": {"type": "string"}, "added": {}}, "required": ["prompt"]}`,
			run:    added("LLM response: %v"),
			before: ask(func(request *mcp.CallToolRequest) mcp.InputRequest {
				return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{
					{Role: "user", Content: &mcp.TextContent{Text: argument(request, "prompt")}},
				}}
			}),
		},
		"test_elicitation": {
			schema: `{"type": "object", "properties": {"message": {"type": "string"}, "added": {}}, "required": ["message"]}`,
			run:    added("User response: %v"),
			before: ask(func(request *mcp.CallToolRequest) mcp.InputRequest {
				return form(argument(request, "message"),
					`{"type": "object", "properties": {"username": {"type": "string"}, "email": {"type": "string"}}, "required": ["username"]}`)(request)
			}),
		},
		"test_elicitation_sep1034_defaults": {
			run: added("Elicitation result: %v"),
			before: ask(form("Please review these defaults.", `{"type": "object", "properties": {
				"name": {"type": "string", "default": "John Doe"}, "age": {"type": "integer", "default": 30},
				"score": {"type": "number", "default": 95.5},
				"status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
				"verified": {"type": "boolean", "default": true}
			}}`)),
		},
		"test_elicitation_sep1330_enums": {
			run: added("Elicitation result: %v"),
			before: ask(form("Please choose.", `{"type": "object", "properties": {
				"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
				"titledSingle": {"type": "string", "oneOf": [
					{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"}
				]},
				"legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
				"untitledMulti": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "enum": ["option1", "option2", "option3"]}},
				"titledMulti": {"type": "array", "minItems": 1, "maxItems": 3, "items": {"anyOf": [
					{"const": "value1", "title": "First"}, {"const": "value2", "title": "Second"}, {"const": "value3", "title": "Third"}
				]}}
			}}`)),
		},
	}
}
