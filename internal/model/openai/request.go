package openai

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	sdk "github.com/sashabaranov/go-openai"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// noText stands for a text that is empty. The SDK would leave such a content out,
// and servers reject a message without one.
const noText = "(empty)"

// request is the body of a request: the SDK's, with what that lacks.
type request struct {
	sdk.ChatCompletionRequest

	Messages    []message `json:"messages"`
	Temperature *float64  `json:"temperature,omitempty"`
}

// message is a message of the SDK, with fields that it does not know.
type message struct {
	sdk.ChatCompletionMessage

	extra map[string]json.RawMessage
}

// MarshalJSON implements [json.Marshaler].
func (m message) MarshalJSON() ([]byte, error) {
	known, err := json.Marshal(m.ChatCompletionMessage)
	if err != nil || len(m.extra) == 0 {
		return known, err
	}
	extra, err := json.Marshal(m.extra)
	if err != nil {
		return nil, err
	}
	known[len(known)-1] = ',' // a role is always there
	return append(known, extra[1:]...), nil
}

// request is req as the API wants it.
func (m *Model) request(req loop.Request) *request {
	out := &request{Messages: make([]message, 0, len(req.Messages)), Temperature: req.Settings.Temperature}
	out.Model, out.Stream, out.ReasoningEffort = m.opts.Model, true, req.Settings.Effort
	if !m.rejects.usage.Load() {
		out.StreamOptions = &sdk.StreamOptions{IncludeUsage: true}
	}
	if m.opts.BaseURL == DefaultBaseURL || m.rejects.maxTokens.Load() { // other servers know the older name
		out.MaxCompletionTokens = int(req.Settings.MaxOutput)
	} else {
		out.MaxTokens = int(req.Settings.MaxOutput) //nolint:staticcheck // deprecated by OpenAI alone
	}
	for i := range req.Messages {
		asked := &req.Messages[i]
		if asked.Role == loop.RoleSystem && asked.Text == "" {
			continue
		}
		next := message{ChatCompletionMessage: messageOf(asked)}
		if !m.rejects.reasoning.Load() {
			next.extra = sentBack(asked.Reasoning)
		}
		out.Messages = append(out.Messages, next)
		last := i+1 == len(req.Messages) || req.Messages[i+1].Role != loop.RoleTool
		if m.opts.Images && asked.Role == loop.RoleTool && last {
			out.Messages = appendImages(out.Messages, req.Messages[:i+1])
		}
	}
	for _, definition := range req.Tools {
		if len(definition.Native) == 0 {
			out.Tools = append(out.Tools, toolOf(definition))
		} else if tool, declared := nativeOf(definition); declared {
			out.Tools = append(out.Tools, tool)
		}
	}
	return out
}

// appendImages adds the images of the tool messages at the end of a conversation, in a
// message of the user: the API takes them there only.
func appendImages(out []message, conversation []loop.Message) []message {
	first := len(conversation)
	for first > 0 && conversation[first-1].Role == loop.RoleTool {
		first--
	}
	var parts []sdk.ChatMessagePart
	for _, result := range conversation[first:] {
		if result.Image == nil {
			continue
		}
		parts = append(parts,
			sdk.ChatMessagePart{Type: sdk.ChatMessagePartTypeText, Text: "The image of tool call " + result.ToolCallID + ":"},
			sdk.ChatMessagePart{Type: sdk.ChatMessagePartTypeImageURL, ImageURL: &sdk.ChatMessageImageURL{
				URL: "data:" + result.Image.MediaType + ";base64," + base64.StdEncoding.EncodeToString(result.Image.Data),
			}})
	}
	if len(parts) == 0 {
		return out
	}
	return append(out, message{ChatCompletionMessage: sdk.ChatCompletionMessage{Role: sdk.ChatMessageRoleUser, MultiContent: parts}})
}

func messageOf(asked *loop.Message) sdk.ChatCompletionMessage {
	out := sdk.ChatCompletionMessage{Role: string(asked.Role), Content: asked.Text}
	switch asked.Role {
	case loop.RoleAssistant:
		for _, call := range asked.ToolCalls {
			out.ToolCalls = append(out.ToolCalls, sdk.ToolCall{
				ID: call.ID, Type: sdk.ToolTypeFunction,
				Function: sdk.FunctionCall{Name: nameOf(call.Name), Arguments: argumentsOf(call.Arguments)},
			})
		}
	case loop.RoleTool:
		out.ToolCallID, out.Name = asked.ToolCallID, nameOf(asked.Name)
	case loop.RoleSystem, loop.RoleUser:
	}
	if out.Content == "" && len(out.ToolCalls) == 0 {
		out.Content = noText
	}
	return out
}

// maxName is how many characters a name may have.
const maxName = 64

// nameOf is the name of a tool as servers take it back. A model may make up others, and a server
// that refuses one would refuse every further request of the session.
func nameOf(written string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, written)
	if name == "" {
		return "_"
	}
	return name[:min(len(name), maxName)]
}

// argumentsOf is what the model wrote if that is a JSON object, else an object
// that holds it.
func argumentsOf(written string) string {
	if json.Valid([]byte(written)) && strings.HasPrefix(strings.TrimSpace(written), "{") {
		return written
	}
	wrapped, err := json.Marshal(map[string]string{"invalid_arguments": written})
	if err != nil {
		return "{}"
	}
	return string(wrapped)
}

// nativeProvider is the name under which tools are declared that the server itself runs.
const nativeProvider = "openai"

// nativeOf declares a tool that the provider runs; declared is false when it is another's.
func nativeOf(definition tools.Definition) (tool sdk.Tool, declared bool) {
	var fields map[string]any
	if json.Unmarshal(definition.Native[nativeProvider], &fields) != nil {
		return sdk.Tool{}, false
	}
	kind, _ := fields["type"].(string)
	delete(fields, "type")
	return sdk.Tool{Type: sdk.ToolType(kind), Parameters: fields}, kind != ""
}

func toolOf(definition tools.Definition) sdk.Tool {
	schema := definition.Schema
	if len(schema) == 0 {
		schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	return sdk.Tool{Type: sdk.ToolTypeFunction, Function: &sdk.FunctionDefinition{
		Name: definition.Name, Description: definition.Description, Parameters: schema,
	}}
}
