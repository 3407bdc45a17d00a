package interop

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

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
