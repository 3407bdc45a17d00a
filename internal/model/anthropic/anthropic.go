// Package anthropic is a model of Anthropic's Messages API, or of a server that speaks it. It
// does without the official SDK: package endpoint sends the requests and reads the answers.
//
// What the model thinks is kept block by block, signed as it came, and goes back while its turn
// lasts: in front of the tool calls to which it led ([endpoint.Piece]). Instructions, tools and the
// conversation have prompt caching marks, so that each step pays only for what is new.
//
// What a server rejects (caching marks, adaptive thinking, a bound of output tokens) is omitted or
// lowered in the session from then on. Blocks of thinking that it refuses are omitted from that
// request alone, which then asks for no thinking.
package anthropic

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

// DefaultBaseURL is the server of a model that names none.
const DefaultBaseURL = "https://api.anthropic.com"

// version is the API's, which each request names.
const version = "2023-06-01"

// maxContinued bounds how often a reply is continued that the provider paused (pause_turn), which
// it does when its own tools take long.
const maxContinued = 16

// Model is one model of one server. It is safe for concurrent use.
type Model struct {
	*endpoint.Endpoint

	rejects *endpoint.Rejects
}

var (
	_ loop.Model    = (*Model)(nil)
	_ loop.Provider = (*Model)(nil)
)

// New returns a model. BaseURL is up to and without "/v1/messages". It connects to nothing; the
// error reports every error of the options.
func New(opts endpoint.Options) (*Model, error) {
	server, err := endpoint.New(endpoint.API{
		DefaultBaseURL: DefaultBaseURL, Example: DefaultBaseURL, Path: "/v1/messages",
		BaseHint: "which usually does not end in /v1", FinishField: "stop_reason",
	}, opts)
	if err != nil {
		return nil, fmt.Errorf("anthropic options: %w", err)
	}
	return &Model{server, endpoint.NewRejects(inMessage, rejected()...)}, nil
}

// Provider implements [loop.Provider].
func (m *Model) Provider() string { return provider }

// Reply implements [loop.Model]. An error is the cause of ctx's end or wraps an
// [*endpoint.Error]. After a broken attempt, delta gets the text from its start again.
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	reply, err := m.Endpoint.Reply(ctx, delta, func() (loop.Reply, error) { return m.attempt(ctx, req, delta) })
	if err != nil {
		return reply, m.request(req, m.rejects.Of(req.Session)).Refused(err, inMessage, inContent)
	}
	return reply, nil
}

// Where the server says that something is wrong.
//
//nolint:gochecknoglobals // compiled once
var (
	inMessage = endpoint.Path("messages")
	inContent = endpoint.Path("content")
)

// What a server may reject of requests. Without thinking a request has no blocks of it, and asks
// for none: the API refuses a conversation without blocks from a model that thinks.
const (
	thinking  = "thinking"
	maxTokens = "max_tokens"
	marks     = "cache_control"
	adaptive  = "adaptive thinking" // the model wants a budget
)

func rejected() []endpoint.Field {
	return []endpoint.Field{
		// A signature does not fit, or a block is missing where another model replied.
		{Name: thinking, Says: regexp.MustCompile("signature|thinking. block|thinking block|redacted_thinking"), Once: true},
		{Name: maxTokens, Says: regexp.MustCompile(`max_tokens\D+\d+ > ([1-9]\d*)`)},
		{Name: marks, Says: regexp.MustCompile(`\bcache_control\b`)},
		{Name: adaptive, Says: regexp.MustCompile(`\badaptive thinking\b|['"]adaptive['"]|\bthinking\.adaptive\b|\boutput_config\b|\beffort parameter\b`)},
	}
}

// attempt asks once, and again without what the server turns out to reject, or for the rest of a
// reply that the provider paused.
func (m *Model) attempt(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	var parts assembler
	lessons := m.rejects.Of(req.Session)
	for {
		sent := m.request(req, lessons)
		sent.resume(parts.blocks)
		err := m.send(ctx, sent, &parts, delta)
		switch {
		case lessons.Learn(err, &sent.Asked):
		case err != nil:
			return parts.Failed(), err
		case parts.Finish == "pause_turn" && parts.continued < maxContinued:
			parts.continued++
		default:
			parts.Keep(provider, parts.pieces())
			parts.Native = parts.native(sent.Tools)
			return m.Finish(&parts.Assembler)
		}
	}
}

// send sends one request and reads its stream to the end.
func (m *Model) send(ctx context.Context, sent *request, parts *assembler, delta func(loop.Delta)) error {
	parts.begin()
	sent.body["messages"] = sent.messages
	headers := map[string]string{"X-Api-Key": m.Options().APIKey, "Anthropic-Version": version}
	return m.Stream(ctx, "/v1/messages", sent.body, headers, &parts.Assembler, func(data []byte) error { return parts.read(data, delta) })
}

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
	out.setBounds(req.Settings)
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

// setBounds sets how long the reply, and what the model thinks before it, may be.
func (r *request) setBounds(settings loop.Settings) {
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
			kept := ownBlocks(m, false)
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
	}.Message(message, ownBlocks(message, r.thoughtless))
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
		return endpoint.Native(definition, provider)
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
