package anthropic

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/internal/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// provider is the name under which tools are declared that the provider runs.
const provider = "anthropic"

// defaultOutput bounds the output tokens of a reply where the user does not: the API wants a bound.
const defaultOutput = 16_384

// request is one request, and what its errors may be about.
type request struct {
	endpoint.Asked

	body        object
	messages    []message
	thoughtless bool
}

// object is a JSON object of the API.
type object = map[string]any

type message struct {
	Role    loop.Role `json:"role"`
	Content []any     `json:"content"` // blocks: an object, or the JSON of one that is only the provider's
}

func textBlock(text string) object { return object{"type": "text", "text": text} }

// request is req as the API wants it, without what the server rejects.
func (m *Model) request(req loop.Request, lessons *endpoint.Lessons) *request {
	out := &request{Asked: endpoint.Asked{Lessons: lessons}}
	out.thoughtless = lessons.Omits(adaptive) && !thought(req.Messages) || !out.May(thinking)
	out.body = object{"model": m.Options().Model, "stream": true}
	if t := req.Settings.Temperature; t != nil {
		out.body["temperature"] = *t
	}
	out.bound(req.Settings)
	var system strings.Builder
	for i := range req.Messages {
		if req.Messages[i].Role == loop.RoleSystem {
			system.WriteString(req.Messages[i].Text)
			continue
		}
		out.add(&req.Messages[i])
	}
	out.Tools = lessons.Offered(req.Tools, func(definition tools.Definition) bool {
		_, declared := toolOf(definition)
		return declared
	})
	var declared, instructions []any
	for _, definition := range out.Tools {
		tool, _ := toolOf(definition)
		declared = append(declared, tool)
	}
	system.WriteString(lessons.Notes(req.Tools))
	if text := strings.TrimSpace(system.String()); text != "" {
		instructions = []any{textBlock(text)}
		out.body["system"] = instructions
	}
	if len(declared) > 0 {
		out.body["tools"] = declared
	}
	if out.May(marks) {
		out.mark(declared, instructions)
	}
	return out
}

// bound sets how long the reply, and what the model thinks before it, may be.
func (r *request) bound(settings loop.Settings) {
	budget := map[string]int64{"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 24_576, "max": 32_768}[settings.Effort]
	thinks := budget > 0 // an effort was asked for
	most := cmp.Or(settings.MaxOutput, defaultOutput+budget)
	if bound := r.Lessons.Most(maxTokens); bound > 0 {
		most = min(most, bound)
	}
	r.Has(maxTokens)
	r.body["max_tokens"] = most
	switch {
	case settings.Effort == "none", thinks && r.thoughtless:
		r.body["thinking"] = object{"type": "disabled"}
	case thinks && !r.May(adaptive):
		if budget >= most {
			budget = max(1024, most/2) // 1024 is the least that the API takes
		}
		r.body["thinking"] = object{"type": "enabled", "budget_tokens": budget}
	case thinks:
		effort := settings.Effort
		if effort == "minimal" {
			effort = "low" // the least that the API knows
		}
		r.body["output_config"] = object{"effort": effort}
		r.body["thinking"] = object{"type": "adaptive", "display": "summarized"}
	}
}

// thought reports whether the last reply that asked for tools begins with a thought: with a budget
// of thinking the API demands that. A reply of another provider's model has no thought here.
func thought(messages []loop.Message) bool {
	for i := range slices.Backward(messages) {
		if m := &messages[i]; m.Role == loop.RoleAssistant {
			kept := keptOf(m, false)
			return len(m.ToolCalls) == 0 || len(kept) > 0 && isThought(kept[0].Type)
		}
	}
	return true
}

// add adds a message; what the same side says in a row is one message of the API.
func (r *request) add(message *loop.Message) {
	switch message.Role {
	case loop.RoleAssistant:
		blocks, parts := r.assistant(message)
		r.append(loop.RoleAssistant, blocks, parts)
	case loop.RoleTool:
		result := []any{textBlock(textOf(message.Text))}
		if message.Image != nil {
			r.AddImage(message.ToolCallID)
			result = append(result, shownOf(message.Image))
		}
		block := object{"type": "tool_result", "tool_use_id": idOf(message.ToolCallID), "content": result}
		r.append(loop.RoleUser, []any{block}, []loop.Part{{ToolCallID: message.ToolCallID, Kind: loop.PartResult}})
	case loop.RoleUser, loop.RoleSystem:
		blocks, parts := []any{textBlock(textOf(message.Text))}, []loop.Part{{}}
		for i := range message.Attachments {
			a := &message.Attachments[i]
			blocks, parts = append(blocks, shownOf(&a.Image)), append(parts, endpoint.AttachmentPart(a))
		}
		r.append(loop.RoleUser, blocks, parts)
	}
}

// shownOf is an image or document as a block.
func shownOf(image *loop.Image) object {
	kind := "image"
	if image.MediaType == render.MediaPDF {
		kind = "document"
	}
	return object{"type": kind, "source": object{"type": "base64", "media_type": image.MediaType, "data": image.Data}}
}

func (r *request) append(role loop.Role, blocks []any, parts []loop.Part) {
	if n := len(r.messages); n > 0 && r.messages[n-1].Role == role {
		r.messages[n-1].Content = append(r.messages[n-1].Content, blocks...)
		r.Messages[n-1] = append(r.Messages[n-1], parts...)
		return
	}
	r.messages = append(r.messages, message{role, blocks})
	r.Messages = append(r.Messages, parts)
}

// assistant is what the model said: blocks that are only the provider's stand where they stood.
func (r *request) assistant(message *loop.Message) (blocks []any, parts []loop.Part) {
	add := func(block any, part loop.Part) { blocks, parts = append(blocks, block), append(parts, part) }
	endpoint.Replay{
		Text: func(said, _ string) { add(textBlock(said), loop.Part{}) },
		Raw:  func(piece json.RawMessage) { add(piece, loop.Part{}) },
		Call: func(call *loop.ToolCall, _ string) {
			add(object{
				"type": "tool_use", "id": idOf(call.ID), "name": endpoint.ToolName(call.Name), "input": json.RawMessage(endpoint.Arguments(call.Arguments)),
			}, loop.Part{ToolCallID: call.ID, Kind: loop.PartCall})
		},
	}.Message(message, keptOf(message, r.thoughtless))
	return blocks, parts
}

// resume adds the blocks of a reply that the provider paused, as it wants them back.
func (r *request) resume(blocks []*block) {
	var said []any
	for _, block := range blocks {
		if raw := block.whole(); raw != nil && (!r.thoughtless || !isThought(block.kind)) {
			said = append(said, raw)
		}
	}
	if len(said) > 0 {
		r.append(loop.RoleAssistant, said, make([]loop.Part, len(said)))
	}
}

// mark sets a caching mark on the last of these blocks or tools. The JSON of one that is only the
// provider's stays as it is.
func mark(list []any) (marked bool) {
	if len(list) == 0 {
		return false
	}
	last, marked := list[len(list)-1].(object)
	if marked {
		last["cache_control"] = object{"type": "ephemeral"}
	}
	return marked
}

// mark sets the four caching marks that the API takes: after tools, after instructions, and after
// each of the user's last two messages. The older one ended the request before, so it is cached.
func (r *request) mark(declared, instructions []any) {
	mark(declared)
	mark(instructions)
	left := 2
	for i := len(r.messages) - 1; i >= 0 && left > 0; i-- {
		if r.messages[i].Role == loop.RoleUser && mark(r.messages[i].Content) {
			left--
		}
	}
}

// toolOf declares a tool. One that a provider runs is declared in that provider's own form;
// declared is false when it is another's.
func toolOf(definition tools.Definition) (tool any, declared bool) {
	if len(definition.Native) > 0 {
		native := definition.Native[provider]
		fields, err := lenient.Object("", native)
		return native, err == nil && lenient.String(fields["type"]) != ""
	}
	declaration := object{"name": definition.Name, "input_schema": endpoint.SchemaOf(definition)}
	if definition.Description != "" {
		declaration["description"] = definition.Description
	}
	return declaration, true
}

// textOf is a text as the API takes it: it refuses blank ones.
func textOf(text string) string {
	if strings.TrimSpace(text) == "" {
		return endpoint.NoText
	}
	return text
}

var validID = regexp.MustCompile(`^[a-zA-Z0-9_-]+$`)

// idOf is the id of a tool call, which another provider may have made up, as the API takes it.
func idOf(id string) string {
	if validID.MatchString(id) {
		return id
	}
	return endpoint.ShortID(id)
}
