//nolint:staticcheck // the suite asks for what is deprecated
package interop

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The questions that the suite of 2026-07-28 wants to be asked, by the names it knows them by.
func wantsForm(message, field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: json.RawMessage(
		fmt.Sprintf(`{"type": "object", "properties": {%q: {"type": %q}}, "required": [%q]}`, field, kind, field),
	)}
}

func wantsName() *mcp.ElicitParams { return wantsForm("What is your name?", "name", "string") }

func wantsWords(prompt string) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{MaxTokens: 100, Messages: []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: prompt}}}}
}

// filled reports whether an answer is one to a question: a form has what it was for.
func filled(question mcp.InputRequest, answer mcp.InputResponse) bool {
	form, is := question.(*mcp.ElicitParams)
	if !is {
		return answer != nil
	}
	given, _ := answer.(*mcp.ElicitResult)
	if given == nil || given.Action != "accept" {
		return false
	}
	var schema struct{ Required []string }
	raw, _ := form.RequestedSchema.(json.RawMessage)
	_ = json.Unmarshal(raw, &schema) // it is written above
	for _, field := range schema.Required {
		if given.Content[field] == nil {
			return false
		}
	}
	return true
}

// needs asks for all of some questions in one request, and again until each is answered. The server
// keeps nothing in between: state, if there is any, is what the client has to bring along.
func needs(state string, questions mcp.InputRequestMap) before {
	return func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
		given := request.Params.InputResponses
		said := map[string]string{}
		for name, question := range questions {
			if filled(question, given[name]) {
				said[name] = answered(given[name])
			}
		}
		if len(said) < len(questions) {
			return &mcp.CallToolResult{InputRequests: questions, RequestState: state}, nil, nil
		}
		if request.Params.RequestState != state {
			return nil, nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not that of the question"}
		}
		request.Params.RequestState = ""
		return nil, said, nil
	}
}

// twice asks for a name and then, by the next request, for a color.
func twice(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
	name, knows := strings.CutPrefix(request.Params.RequestState, "name=")
	given := request.Params.InputResponses
	color := wantsForm("What is your favorite color?", "color", "string")
	switch {
	case knows && filled(color, given["step2"]):
		request.Params.RequestState = ""
		return nil, name + ", " + answered(given["step2"]), nil
	case filled(wantsName(), given["step1"]):
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"step2": color}, RequestState: "name=" + answered(given["step1"])}, nil, nil
	default:
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"step1": wantsName()}, RequestState: "begun"}, nil, nil
	}
}

// able asks what the client says that it can be asked.
func able(server *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
	can, questions := request.ClientCapabilities(), mcp.InputRequestMap{}
	if can != nil && can.Elicitation != nil {
		questions["user_name"] = wantsName()
	}
	if can != nil && can.Sampling != nil {
		questions["greeting"] = wantsWords("Generate a short greeting")
	}
	return needs("", questions)(server, request)
}

// roundTools are the tools of the suite of 2026-07-28 that ask by requests which the client makes
// again, or whose answer depends on what the client can.
func roundTools() map[string]fixtureTool {
	asks := func(state string, questions mcp.InputRequestMap) fixtureTool {
		return fixtureTool{run: added("The client said: %v"), before: needs(state, questions)}
	}
	deletes := mcp.InputRequestMap{"confirm": wantsForm("May the file be deleted?", "confirm", "boolean")}
	confirm := mcp.InputRequestMap{"confirm": wantsForm("Please confirm.", "ok", "boolean")}
	return map[string]fixtureTool{
		"test_input_required_result_elicitation":   asks("", mcp.InputRequestMap{"user_name": wantsName()}),
		"test_input_required_result_sampling":      asks("", mcp.InputRequestMap{"capital_question": wantsWords("What is the capital of France?")}),
		"test_input_required_result_list_roots":    asks("", mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}),
		"test_input_required_result_request_state": {run: added("state-ok: %v"), before: needs("carried", confirm)},
		"test_input_required_result_multiple_inputs": asks("several", mcp.InputRequestMap{
			"user_name": wantsName(), "greeting": wantsWords("Generate a greeting"), "client_roots": &mcp.ListRootsParams{},
		}),
		"test_input_required_result_multi_round":  {run: added("The client said: %v"), before: twice},
		"test_input_required_result_capabilities": {run: added("The client said: %v"), before: able},
		// What it asks is the server's own question, whether the call may be made.
		"test_input_required_result_tampered_state": {},
		"confirm_delete": {
			schema: `{"type": "object", "properties": {"filename": {"type": "string"}, "added": {}}}`, run: added("deleted: %v"), before: needs("", deletes),
		},
		"test_tool_with_task": asks("", mcp.InputRequestMap{"user_name": wantsName()}),
		"test_missing_capability": {before: func(_ *mcp.Server, request *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
			if can := request.ClientCapabilities(); can != nil && can.Sampling != nil {
				return nil, nil, nil
			}
			return nil, nil, lacks(`{"sampling": {}}`)
		}},
		"test_trigger_prompt_change": {before: func(server *mcp.Server, _ *mcp.CallToolRequest) (*mcp.CallToolResult, any, error) {
			extendRounds(server) // which says so, whether it changes anything or not
			return nil, nil, nil
		}},
		"test_streaming_elicitation": {},
		"test_logging_tool":          {run: logging},
		"test_x_mcp_header": {schema: `{"type": "object", "properties": {
			"region": {"type": "string", "x-mcp-header": "Region"}, "level": {"type": "integer"}
		}}`},
	}
}

// lacks refuses a client that does not have a capability.
func lacks(capabilities string) error {
	return &jsonrpc.Error{
		Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the client lacks a capability",
		Data: json.RawMessage(`{"requiredCapabilities": ` + capabilities + `}`),
	}
}

// extendRounds adds the prompts of that suite.
func extendRounds(server *mcp.Server) {
	server.AddPrompt(&mcp.Prompt{Name: "test_input_required_result_prompt", Description: described},
		func(_ context.Context, request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			wants := wantsForm("Please provide context for the prompt.", "context", "string")
			if answer := request.Params.InputResponses["user_context"]; filled(wants, answer) {
				return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: answered(answer)}}}}, nil
			}
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{"user_context": wants}}, nil
		})
}

// fixtureOptions adds what the suites ask of a server and a fleet does not have.
func fixtureOptions(o *mcp.ServerOptions) {
	o.CompletionHandler = func(context.Context, *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
		return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: []string{}}}, nil
	}
	o.SubscribeHandler = func(context.Context, *mcp.SubscribeRequest) error { return nil }
	o.UnsubscribeHandler = func(context.Context, *mcp.UnsubscribeRequest) error { return nil }
}

// extendFixture adds resources and prompts.
func extendFixture(server *mcp.Server) {
	pixel, _ := base64.StdEncoding.DecodeString(redPixel) // it is base64
	resource := func(name, uri string, contents mcp.ResourceContents) {
		contents.URI = uri
		server.AddResource(&mcp.Resource{Name: name, URI: uri, MIMEType: contents.MIMEType},
			func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&contents}}, nil
			})
	}
	resource("static-text", "test://static-text", mcp.ResourceContents{MIMEType: "text/plain", Text: "This is the content of the static text resource."})
	resource("static-binary", "test://static-binary", mcp.ResourceContents{MIMEType: "image/png", Blob: pixel})
	resource("watched-resource", "test://watched-resource", mcp.ResourceContents{MIMEType: "text/plain", Text: "Watched resource content"})
	server.AddResourceTemplate(&mcp.ResourceTemplate{Name: "template", MIMEType: "application/json", URITemplate: "test://template/{id}/data"},
		func(_ context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			id := strings.TrimSuffix(strings.TrimPrefix(request.Params.URI, "test://template/"), "/data")
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{
				URI: request.Params.URI, MIMEType: "application/json",
				Text: fmt.Sprintf(`{"id": %q, "templateTest": true, "data": "Data for ID: %s"}`, id, id),
			}}}, nil
		})
	extendPrompts(server, pixel)
	extendRounds(server)
}

func extendPrompts(server *mcp.Server, pixel []byte) {
	prompt := func(name string, arguments []string, says func(map[string]string) []mcp.Content) {
		p := &mcp.Prompt{Name: name, Description: "Is asked for by a conformance suite."}
		for _, argument := range arguments {
			p.Arguments = append(p.Arguments, &mcp.PromptArgument{Name: argument, Description: "An argument.", Required: true})
		}
		server.AddPrompt(p, func(_ context.Context, request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			result := &mcp.GetPromptResult{Description: p.Description}
			for _, content := range says(request.Params.Arguments) {
				result.Messages = append(result.Messages, &mcp.PromptMessage{Role: "user", Content: content})
			}
			return result, nil
		})
	}
	prompt("test_simple_prompt", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{&mcp.TextContent{Text: "This is a simple prompt for testing."}}
	})
	prompt("test_prompt_with_arguments", []string{"arg1", "arg2"}, func(given map[string]string) []mcp.Content {
		return []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", given["arg1"], given["arg2"])}}
	})
	prompt("test_prompt_with_embedded_resource", []string{"resourceUri"}, func(given map[string]string) []mcp.Content {
		return []mcp.Content{
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
				URI: given["resourceUri"], MIMEType: "text/plain", Text: "Embedded resource content for testing.",
			}},
			&mcp.TextContent{Text: "Please process the embedded resource above."},
		}
	})
	prompt("test_prompt_with_image", nil, func(map[string]string) []mcp.Content {
		return []mcp.Content{
			&mcp.ImageContent{Data: pixel, MIMEType: "image/png"}, &mcp.TextContent{Text: "Please analyze the image above."},
		}
	})
}
