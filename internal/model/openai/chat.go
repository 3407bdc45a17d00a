package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// request is the body of a request.
type request struct {
	Model               string         `json:"model"`
	Conversation        []message      `json:"messages"`
	Declared            []any          `json:"tools,omitempty"` // functionTool, or the JSON of a native one
	Stream              bool           `json:"stream"`
	StreamOptions       *streamOptions `json:"stream_options,omitempty"`
	Temperature         *float64       `json:"temperature,omitempty"`
	ReasoningEffort     string         `json:"reasoning_effort,omitempty"`
	MaxTokens           int64          `json:"max_tokens,omitempty"`
	MaxCompletionTokens int64          `json:"max_completion_tokens,omitempty"`

	endpoint.Asked `json:"-"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type message struct {
	Role       loop.Role  `json:"role"`
	Content    any        `json:"content,omitempty"` // a string, or a []contentPart
	Name       string     `json:"name,omitempty"`
	ToolCalls  []toolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`

	ReasoningContent *string          `json:"reasoning_content,omitempty"`
	Reasoning        *string          `json:"reasoning,omitempty"`
	ReasoningDetails []lenient.Fields `json:"reasoning_details,omitempty"`

	callID string      // of a tool message, as the conversation has it
	shown  []loop.Part // of what each part of its content is; the zero one of a text of the user's
}

type contentPart struct {
	Type     string    `json:"type"`
	Text     string    `json:"text,omitempty"`
	ImageURL *imageURL `json:"image_url,omitempty"`
	File     *fileData `json:"file,omitempty"`
}

type fileData struct {
	FileName string `json:"filename"`
	FileData string `json:"file_data"`
}

type imageURL struct {
	URL string `json:"url"`
}

type toolCall struct {
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`

	callID string // as the conversation has it
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type functionTool struct {
	Type     string   `json:"type"`
	Function function `json:"function"`
}

type function struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// request is req as the API wants it.
func (m *Model) request(req loop.Request, lessons *endpoint.Lessons) *request {
	out := &request{
		Model: m.Options().Model, Conversation: make([]message, 0, len(req.Messages)), Stream: true,
		Temperature: req.Settings.Temperature, ReasoningEffort: req.Settings.Effort,
		Asked: endpoint.Asked{Lessons: lessons, Tools: offered(lessons, req.Tools)},
	}
	if out.May(usage) {
		out.StreamOptions = &streamOptions{IncludeUsage: true}
	}
	if m.Options().BaseURL == DefaultBaseURL || !out.May(maxTokens) { // other servers know the older name
		out.MaxCompletionTokens = req.Settings.MaxOutput
	} else {
		out.MaxTokens = req.Settings.MaxOutput
	}
	for i := range req.Messages {
		asked := &req.Messages[i]
		if asked.Role == loop.RoleSystem && asked.Text == "" {
			continue
		}
		next := out.messageOf(asked)
		if len(asked.Attachments) > 0 {
			next.attach(m.viewable(asked))
		}
		if asked.Reasoning != nil && out.May(reasoning) && out.May(thoughts) {
			next.sendBack(asked.Reasoning)
		}
		out.Conversation = append(out.Conversation, next)
		last := i+1 == len(req.Messages) || req.Messages[i+1].Role != loop.RoleTool
		if m.images && asked.Role == loop.RoleTool && last {
			out.Conversation = m.appendImages(out.Conversation, req.Messages[:i+1])
		}
	}
	for _, definition := range out.Tools {
		tool, _ := toolOf(definition)
		out.Declared = append(out.Declared, tool)
	}
	out.instruct(lessons.Notes(req.Tools))
	return out
}

// instruct adds to the instructions, behind them so that positions in the conversation stay.
func (r *request) instruct(notes string) {
	switch {
	case notes == "":
	case len(r.Conversation) > 0 && r.Conversation[0].Role == loop.RoleSystem:
		r.Conversation[0].Content = fmt.Sprint(r.Conversation[0].Content, notes)
	default:
		r.Conversation = append(r.Conversation, message{Role: loop.RoleSystem, Content: strings.TrimSpace(notes)})
	}
}

// documentName is the name of a document that has none: the API wants one.
const documentName = "document.pdf"

// dataURL is an image or document as the APIs take it.
func dataURL(image *loop.Image) string {
	return "data:" + image.MediaType + ";base64," + base64.StdEncoding.EncodeToString(image.Data)
}

// viewable is the text of an input, and the attachments that the model takes; the text names the
// others, which a session has from the time when it had another model.
func (m *Model) viewable(asked *loop.Message) (text string, list []loop.Attachment) {
	text = asked.Text
	for _, a := range asked.Attachments {
		if m.Views(a.MediaType) {
			list = append(list, a)
			continue
		}
		text += "\n[The attached file " + a.Name + " is not shown: this model takes no files of type " + a.MediaType + "]"
	}
	return text, list
}

// attach makes the content of a message of the user a text with attachments behind it.
func (m *message) attach(text string, list []loop.Attachment) {
	m.Content = endpoint.TextOf(text)
	if len(list) == 0 {
		return
	}
	parts := []contentPart{{Type: "text", Text: endpoint.TextOf(text)}}
	m.shown = []loop.Part{{}}
	for i := range list {
		parts, m.shown = append(parts, partOf(&list[i].Image, list[i].Name)), append(m.shown, endpoint.AttachmentPart(&list[i]))
	}
	m.Content = parts
}

// partOf is an image or document as a part of a content.
func partOf(image *loop.Image, name string) contentPart {
	if image.MediaType == render.MediaPDF {
		return contentPart{Type: "file", File: &fileData{name, dataURL(image)}}
	}
	return contentPart{Type: "image_url", ImageURL: &imageURL{dataURL(image)}}
}

// appendImages adds the images and documents of the tool messages at the end of a conversation, in
// a message of the user: the API takes them there only.
func (m *Model) appendImages(out []message, conversation []loop.Message) []message {
	first := len(conversation)
	for first > 0 && conversation[first-1].Role == loop.RoleTool {
		first--
	}
	var parts []contentPart
	var shown []loop.Part
	for _, result := range conversation[first:] {
		if result.Image == nil || !m.Views(result.Image.MediaType) {
			continue
		}
		of := loop.Part{ToolCallID: result.ToolCallID, Kind: loop.PartImage}
		shown = append(shown, of, of)
		what := "image"
		if result.Image.MediaType == render.MediaPDF {
			what = "document"
		}
		parts = append(parts, contentPart{Type: "text", Text: "The " + what + " of tool call " + result.ToolCallID + ":"}, partOf(result.Image, documentName))
	}
	if len(parts) == 0 {
		return out
	}
	return append(out, message{Role: loop.RoleUser, Content: parts, shown: shown})
}

func (r *request) messageOf(asked *loop.Message) message {
	out := message{Role: asked.Role}
	switch asked.Role {
	case loop.RoleAssistant:
		for _, call := range asked.ToolCalls {
			out.ToolCalls = append(out.ToolCalls, toolCall{
				ID: r.idOf(call.ID), Type: "function", callID: call.ID,
				Function: functionCall{endpoint.ToolName(call.Name), endpoint.Arguments(call.Arguments)},
			})
		}
	case loop.RoleTool:
		out.ToolCallID, out.callID = r.idOf(asked.ToolCallID), asked.ToolCallID
		if r.May(names) {
			out.Name = endpoint.ToolName(asked.Name)
		}
	case loop.RoleSystem, loop.RoleUser:
	}
	if asked.Text != "" || len(out.ToolCalls) == 0 {
		out.Content = endpoint.TextOf(asked.Text)
	}
	return out
}

// nativeProvider is the name under which tools are declared that the server itself runs.
const nativeProvider = "openai"

// toolOf declares a tool. One that a provider runs is declared in that provider's own form;
// declared is false when it is another's.
func toolOf(definition tools.Definition) (tool any, declared bool) {
	if len(definition.Native) > 0 {
		return endpoint.Native(definition, nativeProvider)
	}
	return functionTool{"function", function{definition.Name, definition.Description, endpoint.SchemaOf(definition)}}, true
}

// assembler puts a reply together from the chunks of a stream.
type assembler struct {
	endpoint.Assembler

	field   string           // of the thought; "" while there is none, or it came in the content
	details []lenient.Fields // blocks of it
}

// read adds the next chunk, and passes its text to delta.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	chunk, err := lenient.Event("a chunk", data)
	if err != nil {
		return err
	}
	if a.Model == "" {
		a.Model, a.ID = chunk.String("model"), chunk.String("id")
	}
	if usage, is := usageOf(chunk.Fields["usage"]); is { // of the whole reply so far; the last one counts
		a.Usage = usage
	}
	for _, choice := range chunk.Objects("choices") {
		if choice.Index("index") > 0 { // another answer, which was never asked for
			continue
		}
		a.readMessage(choice.Object("delta"), delta)
		if reason := choice.String("finish_reason"); reason != "" && reason != "null" {
			a.Finish = reason
		}
	}
	return chunk.Fault()
}

func (a *assembler) readMessage(message lenient.Object, delta func(loop.Delta)) {
	text, thinks, err := visibleText(message.At("content"), message.Fields["content"])
	message.Fail(err)
	refusal, _, err := visibleText(message.At("refusal"), message.Fields["refusal"])
	message.Fail(err)
	a.addThought(message.Fields, thinks)
	a.Text.Add(text)
	a.Text.Add(refusal)
	a.Emit(delta)
	for _, call := range message.Objects("tool_calls") {
		function := call // of servers that leave the level between out
		if lenient.IsSet(call.Fields["function"]) {
			function = call.Object("function")
		}
		a.AddCall(endpoint.CallPiece{
			Index: call.Index("index"), ID: call.String("id"), Name: function.String("name"), Arguments: lenient.Written(function.Fields["arguments"]),
		})
	}
}

// Names of the fields in which servers show what a model thinks. What was said in a field is
// sent back in it.
const (
	fieldContent   = "reasoning_content" // DeepSeek, llama.cpp, SGLang, older vLLM
	fieldReasoning = "reasoning"         // vLLM, Ollama, Groq, OpenRouter
	fieldDetails   = "reasoning_details" // OpenRouter: blocks, some of them signed, which it wants back unchanged
)

// addThought adds the next piece of a thought: the fields of a message, and what its content
// has. What has another form than expected is left out: nothing depends on it.
func (a *assembler) addThought(message lenient.Fields, inContent string) {
	details, _ := lenient.List(fieldDetails, message[fieldDetails])
	for _, raw := range details {
		if detail, err := lenient.FieldsOf(fieldDetails, raw); err == nil && len(detail) > 0 {
			a.addDetail(detail)
		}
	}
	a.Thought.Add(inContent)
	for _, name := range []string{fieldContent, fieldReasoning} {
		raw := message[name]
		if lenient.Kind(raw) == '"' && len(raw) > len(`""`) && (a.field == "" || a.field == name) {
			a.field = name // a server that has both says the same in them
			a.Thought.Add(lenient.Unquote(raw))
		}
	}
}

// addDetail takes in a piece of a block: of the last one, if it has the same type and index.
func (a *assembler) addDetail(piece lenient.Fields) {
	n := len(a.details)
	if n == 0 || !same(a.details[n-1], piece, "type") || !same(a.details[n-1], piece, "index") {
		a.details = append(a.details, piece)
		return
	}
	block := a.details[n-1]
	for name, value := range piece {
		grows := slices.Contains([]string{"text", "summary", "data"}, name)
		switch {
		case !lenient.IsSet(value):
		case grows && lenient.Kind(block[name]) == '"' && lenient.Kind(value) == '"': // still quoted, a character may be cut between them
			text := block[name]
			block[name] = slices.Concat(text[:len(text)-1], value[1:])
		default:
			block[name] = value
		}
	}
}

func same(a, b lenient.Fields, name string) bool {
	return bytes.Equal(a[name], b[name])
}

// opaque is what [loop.Reasoning].Opaque holds.
type opaque struct {
	Field   string           `json:"field,omitempty"`
	Details []lenient.Fields `json:"details,omitempty"`
}

// reasoning is what has been put together; nil when there is none.
func (a *assembler) reasoning() *loop.Reasoning {
	if a.Thought.IsEmpty() && len(a.details) == 0 {
		return nil
	}
	kept, err := json.Marshal(opaque{a.field, a.details})
	if err != nil {
		kept = nil // it was decoded from JSON
	}
	return &loop.Reasoning{Text: a.Thought.String(), Opaque: kept}
}

// sendBack adds reasoning to the message that it was thought for, in the form that it came in,
// blocks before their text. It adds nothing of another adapter's.
func (m *message) sendBack(r *loop.Reasoning) {
	var kept opaque
	switch {
	case r == nil, json.Unmarshal(r.Opaque, &kept) != nil:
	case len(kept.Details) > 0:
		m.ReasoningDetails = kept.Details
	case kept.Field == fieldContent:
		m.ReasoningContent = &r.Text
	case kept.Field == fieldReasoning:
		m.Reasoning = &r.Text
	}
}
