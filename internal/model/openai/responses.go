package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// The values of [Options].API.
const (
	// Auto is the Responses API at OpenAI itself, and chat completions where that is not found, and
	// at other servers.
	Auto = "auto"
	// Responses and Chat are these APIs, at every server.
	Responses = "responses"
	Chat      = "chat"
)

// responsesRequest is the body of a request.
type responsesRequest struct {
	Model           string            `json:"model"`
	Instructions    string            `json:"instructions,omitempty"`
	Input           []any             `json:"input"`
	Declared        []any             `json:"tools,omitempty"`
	Stream          bool              `json:"stream"`
	Store           bool              `json:"store"` // false: the conversation is in our journal
	Include         []string          `json:"include,omitempty"`
	Reasoning       map[string]string `json:"reasoning,omitempty"`
	Temperature     *float64          `json:"temperature,omitempty"`
	MaxOutputTokens int64             `json:"max_output_tokens,omitempty"`

	endpoint.Asked `json:"-"`
}

type inputMessage struct {
	Type    string    `json:"type"`
	Role    loop.Role `json:"role"`
	Content any       `json:"content"` // a string, or a []inputPart
}

type inputCall struct {
	Type      string `json:"type"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type inputResult struct {
	Type   string `json:"type"`
	CallID string `json:"call_id"`
	Output any    `json:"output"` // a string, or a []inputPart
}

type inputPart struct {
	Type     string `json:"type"`
	Text     string `json:"text,omitempty"`
	ImageURL string `json:"image_url,omitempty"`
	FileName string `json:"filename,omitempty"`
	FileData string `json:"file_data,omitempty"`
}

type responsesTool struct {
	Type        string          `json:"type"`
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
	Strict      bool            `json:"strict"` // false: schemas of tools are not of the strict form
}

// responsesRequest is req as the Responses API wants it.
func (m *Model) responsesRequest(req loop.Request, lessons *endpoint.Lessons) *responsesRequest {
	out := &responsesRequest{
		Model: m.Options().Model, Stream: true, Temperature: req.Settings.Temperature, MaxOutputTokens: req.Settings.MaxOutput,
		Reasoning: map[string]string{}, Asked: endpoint.Asked{Lessons: lessons, Tools: offered(lessons, req.Tools)},
	}
	if out.May(encrypted) {
		out.Include = []string{encrypted}
	}
	if req.Settings.Effort != "" {
		out.Reasoning["effort"] = req.Settings.Effort
	}
	if out.May(summary) {
		out.Reasoning["summary"] = "auto"
	}
	var system strings.Builder
	for i := range req.Messages {
		switch message := &req.Messages[i]; message.Role {
		case loop.RoleSystem:
			system.WriteString(message.Text)
		case loop.RoleAssistant:
			out.assistant(message)
		case loop.RoleTool:
			out.result(message, m.images)
		case loop.RoleUser:
			out.user(m.viewable(message))
		}
	}
	if more := included(out.Tools); len(more) > 0 && out.May(include) {
		out.Include = append(out.Include, more...)
	}
	for _, definition := range out.Tools {
		tool, _ := toolOf(definition)
		if function, is := tool.(functionTool); is {
			tool = responsesTool{"function", function.Function.Name, function.Function.Description, function.Function.Parameters, false}
		}
		out.Declared = append(out.Declared, tool)
	}
	out.Instructions = strings.TrimSpace(system.String() + lessons.Notes(req.Tools))
	return out
}

func (r *responsesRequest) add(item any, of ...loop.Part) {
	r.Input = append(r.Input, item)
	r.Messages = append(r.Messages, of)
}

// user adds what the user said, with attachments behind it.
func (r *responsesRequest) user(text string, list []loop.Attachment) {
	said := inputMessage{"message", loop.RoleUser, endpoint.TextOf(text)}
	parts, of := []inputPart{{Type: "input_text", Text: endpoint.TextOf(text)}}, []loop.Part{{}}
	for i := range list {
		parts, of = append(parts, inputPartOf(&list[i].Image, list[i].Name)), append(of, endpoint.AttachmentPart(&list[i]))
	}
	if len(list) > 0 {
		said.Content = parts
	}
	r.add(said, of...)
}

// inputPartOf is an image or document as a part of the input.
func inputPartOf(image *loop.Image, name string) inputPart {
	if image.MediaType == render.MediaPDF {
		return inputPart{Type: "input_file", FileName: name, FileData: dataURL(image)}
	}
	return inputPart{Type: "input_image", ImageURL: dataURL(image)}
}

// assistant adds what the model said: items that are only the provider's stand where they stood.
func (r *responsesRequest) assistant(message *loop.Message) {
	var kept []endpoint.Piece
	if message.Reasoning != nil && r.May(thoughts) {
		kept = endpoint.Kept(Responses, message)
	}
	endpoint.Replay{
		Text: func(said, _ string) { r.add(inputMessage{"message", loop.RoleAssistant, said}, loop.Part{}) },
		Raw:  func(piece json.RawMessage) { r.add(piece, loop.Part{}) },
		Call: func(call *loop.ToolCall, _ string) {
			r.add(inputCall{"function_call", call.ID, endpoint.ToolName(call.Name), endpoint.Arguments(call.Arguments)},
				loop.Part{ToolCallID: call.ID, Kind: loop.PartCall})
		},
	}.Message(message, kept)
}

func (r *responsesRequest) result(message *loop.Message, images bool) {
	answer := inputResult{"function_call_output", message.ToolCallID, endpoint.TextOf(message.Text)}
	if image := message.Image; image != nil && images {
		r.AddImage(message.ToolCallID)
		answer.Output = []inputPart{{Type: "input_text", Text: endpoint.TextOf(message.Text)}, inputPartOf(image, documentName)}
	}
	r.add(answer, loop.Part{ToolCallID: message.ToolCallID, Kind: loop.PartResult})
}

// sendResponses sends one request to the Responses API and reads its stream to the end.
func (m *Model) sendResponses(ctx context.Context, sent *responsesRequest, delta func(loop.Delta)) (loop.Reply, error) {
	parts := responsesAssembler{endpoint: m.Endpoint, offered: sent.Tools, byIndex: map[int]*outputItem{}}
	err := m.Stream(ctx, "/responses", sent, m.headers(), &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
	if err != nil {
		return parts.Failed(), err
	}
	parts.Keep(Responses, parts.pieces())
	return m.Finish(&parts.Assembler)
}

// responsesAssembler puts a reply together from the events of a stream.
type responsesAssembler struct {
	endpoint.Assembler

	endpoint *endpoint.Endpoint
	offered  []tools.Definition
	items    []*outputItem
	byIndex  map[int]*outputItem
}

// outputItem is one item of the output.
type outputItem struct {
	kind      string
	number    int // from 0, in the reply
	text      int // bytes of text so far
	arguments bool
	raw       json.RawMessage // once it is done
}

// read adds the next event, and passes its text to delta.
func (a *responsesAssembler) read(data []byte, delta func(loop.Delta)) error {
	event, err := lenient.Event("an event", data)
	if err != nil {
		return err
	}
	index := event.Index("output_index")
	switch kind := event.String("type"); kind {
	case "response.created", "response.in_progress":
		err = a.readResponse("", event.Object("response"))
	case "response.completed", "response.incomplete", "response.failed", "response.cancelled", "response.done":
		err = a.readResponse(kind, event.Object("response"))
	case "error":
		err = a.failed(event.Fields)
	case "response.output_item.added":
		a.readItem(index, event.Object("item"), false)
	case "response.output_item.done":
		a.readItem(index, event.Object("item"), true)
	case "response.output_text.delta", "response.refusal.delta":
		a.say(a.item(index, "message"), lenient.Piece(event.Fields["delta"]))
	case "response.reasoning_summary_text.delta", "response.reasoning_text.delta":
		a.Thought.Add(lenient.Piece(event.Fields["delta"]))
	case "response.function_call_arguments.delta":
		item := a.item(index, "function_call")
		item.arguments = true
		a.AddCall(endpoint.CallPiece{Index: item.number, Arguments: lenient.Written(event.Fields["delta"])})
	}
	a.Emit(delta)
	return cmp.Or(err, event.Fault())
}

func (a *responsesAssembler) say(item *outputItem, text string) {
	before := a.Text.Len()
	a.Text.Add(text)
	item.text += a.Text.Len() - before
}

// item is the item with an index; a new one unless the stream has begun it.
func (a *responsesAssembler) item(index int, kind string) *outputItem {
	if item := a.byIndex[index]; item != nil {
		return item
	}
	return a.newItem(index, kind)
}

func (a *responsesAssembler) newItem(index int, kind string) *outputItem {
	item := &outputItem{kind: kind, number: len(a.items)}
	a.items, a.byIndex[index] = append(a.items, item), item
	return item
}

func (a *responsesAssembler) readItem(index int, fields lenient.Object, done bool) {
	kind := fields.String("type")
	item := a.byIndex[index]
	if item == nil || !done || item.raw != nil { // an index that comes twice is another item
		item = a.newItem(index, kind)
	}
	if done {
		item.raw = fields.Raw
	}
	switch kind {
	case "function_call":
		piece := endpoint.CallPiece{Index: item.number, ID: cmp.Or(fields.String("call_id"), fields.String("id")), Name: fields.String("name")}
		if arguments := lenient.Written(fields.Fields["arguments"]); !item.arguments && arguments != "" {
			item.arguments, piece.Arguments = true, arguments
		}
		a.AddCall(piece)
	case "message":
		if text, _, err := visibleText("item.content", fields.Fields["content"]); err == nil && done && item.text == 0 {
			a.say(item, text)
		}
	case nativeSearch + "_call", nativeCode + "_call", nativeImage + "_call":
		if done {
			a.addNative(kind, fields.Fields)
		}
	case "reasoning":
		if text, thought, err := visibleText("item.summary", fields.Fields["summary"]); err == nil && done && a.Thought.IsEmpty() {
			a.Thought.Add(text + thought)
		}
	}
}

// readResponse reads the whole response, as the first and the last events have it.
func (a *responsesAssembler) readResponse(end string, response lenient.Object) error {
	if a.Model == "" {
		a.Model, a.ID = response.String("model"), response.String("id")
	}
	if usage, is := usageOf(response.Fields["usage"]); is {
		a.Usage = usage
	}
	if end == "" {
		return nil
	}
	if len(a.byIndex) == 0 { // of a server that sends no items
		for i, item := range response.Objects("output") {
			a.readItem(i, item, true)
			delete(a.byIndex, i)
		}
	}
	if failure, err := lenient.FieldsOf("error", response.Fields["error"]); err == nil && len(failure) > 0 {
		return a.failed(failure)
	}
	a.Finish = strings.TrimPrefix(end, "response.")
	if status := response.String("status"); a.Finish == "done" && status != "" { // which is any end
		a.Finish = status
	}
	if reason := response.Object("incomplete_details").String("reason"); reason != "" {
		a.Finish = reason
	}
	return nil
}

// failed is an error that came instead of the rest of the stream.
func (a *responsesAssembler) failed(failure lenient.Fields) error {
	return a.endpoint.StreamError(lenient.String(failure["message"]), lenient.String(failure["code"]), lenient.String(failure["type"]))
}

// pieces are the items of the reply. Reasoning without its encrypted content is not kept: the
// server, which stores nothing, would not know it.
func (a *responsesAssembler) pieces() (pieces []endpoint.Piece) {
	for _, item := range a.items {
		fields, _ := lenient.FieldsOf("item", item.raw)
		switch {
		case item.kind == "message":
			pieces = append(pieces, endpoint.Piece{Type: endpoint.PieceText, Text: item.text})
		case item.kind == "function_call":
			pieces = append(pieces, endpoint.Piece{Type: endpoint.PieceCall})
		case item.raw == nil, item.kind == "reasoning" && lenient.IsBlank(fields["encrypted_content"]), item.kind == nativeImage+"_call":
		default:
			pieces = append(pieces, endpoint.Piece{Type: item.kind, Raw: item.raw})
		}
	}
	return pieces
}

// The types of tools that OpenAI runs itself; their items have "_call" behind.
const (
	nativeSearch = "web_search"
	nativeCode   = "code_interpreter"
	nativeImage  = "image_generation"
)

// included is what a request asks for so that calls of native tools come with their results.
func included(offered []tools.Definition) []string {
	var include []string
	for _, definition := range offered {
		switch {
		case endpoint.IsNative(definition, nativeProvider, nativeSearch):
			include = append(include, "web_search_call.action.sources")
		case endpoint.IsNative(definition, nativeProvider, nativeCode):
			include = append(include, "code_interpreter_call.outputs")
		}
	}
	return include
}

// addNative adds a call that the server ran itself, as its item has it.
func (a *responsesAssembler) addNative(kind string, item lenient.Fields) {
	kind = strings.TrimSuffix(kind, "_call")
	call := loop.NativeCall{Name: endpoint.NativeName(a.offered, nativeProvider, kind), Kind: kind, Failed: lenient.String(item["status"]) == "failed"}
	switch kind {
	case nativeSearch:
		action, _ := lenient.FieldsOf("action", item["action"])
		call.Input = endpoint.NativeText(action, "query", "url", "pattern")
		call.Output = addresses(action["sources"])
	case nativeCode:
		call.Input = lenient.String(item["code"])
		outputs, _ := lenient.List("outputs", item["outputs"])
		var texts []string
		for _, raw := range outputs {
			output, _ := lenient.FieldsOf("output", raw)
			texts = append(texts, endpoint.NativeText(output, "logs", "url"))
		}
		call.Output = strings.Join(texts, "\n")
	case nativeImage:
		call.Input = lenient.String(item["revised_prompt"])
		format := cmp.Or(lenient.String(item["output_format"]), "png")
		call.Image = endpoint.NativeImage("image/"+format, lenient.String(item["result"]))
	default:
		return
	}
	a.Native = append(a.Native, call)
}

// addresses are the URLs of a list of objects, one a line.
func addresses(raw json.RawMessage) string {
	list, _ := lenient.List("sources", raw)
	var urls []string
	for _, entry := range list {
		source, _ := lenient.FieldsOf("source", entry)
		if url := lenient.String(source["url"]); url != "" {
			urls = append(urls, url)
		}
	}
	return strings.Join(urls, "\n")
}
