package openai

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// assembler puts a reply together from the chunks of a stream.
type assembler struct {
	text    growing
	calls   []*partialCall
	byIndex map[int]*partialCall
	finish  string // why the reply ended, in the server's word; "" when it does not say
	usage   protocol.Usage
	model   string
	thought thought
}

type partialCall struct {
	id, name  string
	arguments growing
}

// callPiece is a piece of a tool call.
type callPiece struct {
	index               int // -1 when there is none
	id, name, arguments string
}

// read adds the next chunk, and passes its text to delta.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	var chunk fields
	if err := json.Unmarshal(data, &chunk); err != nil {
		if json.Valid(data) {
			return wrongForm("a chunk", data, "an object")
		}
		return err
	}
	if a.model == "" {
		a.model = textOf(chunk["model"])
	}
	if usage, is := usageOf(chunk["usage"]); is { // of the whole reply so far; the last one counts
		a.usage = usage
	}
	choices, err := listOf("choices", chunk["choices"])
	for i := 0; err == nil && i < len(choices); i++ {
		err = a.readChoice(fmt.Sprintf("choices[%d]", i), choices[i], delta)
	}
	return err
}

func (a *assembler) readChoice(where string, raw json.RawMessage, delta func(loop.Delta)) error {
	choice, err := objectOf(where, raw)
	if err != nil {
		return err
	}
	index, err := indexOf(where+".index", choice["index"])
	if err != nil || index > 0 { // another answer, which was never asked for
		return err
	}
	message, err := objectOf(where+".delta", choice["delta"])
	if err != nil {
		return err
	}
	if err := a.readMessage(where+".delta", message, delta); err != nil {
		return err
	}
	if reason := textOf(choice["finish_reason"]); reason != "" && reason != "null" {
		a.finish = reason
	}
	return nil
}

func (a *assembler) readMessage(where string, message fields, delta func(loop.Delta)) error {
	text, thinks, err := spoken(where+".content", message["content"])
	if err != nil {
		return err
	}
	refusal, _, err := spoken(where+".refusal", message["refusal"])
	if err != nil {
		return err
	}
	a.thought.read(message, thinks)
	if piece := a.thought.text.fresh(); piece != "" {
		delta(loop.Delta{Reasoning: piece})
	}
	a.text.add(text)
	a.text.add(refusal)
	if piece := a.text.fresh(); piece != "" {
		delta(loop.Delta{Text: piece})
	}
	calls, err := listOf(where+".tool_calls", message["tool_calls"])
	for i := 0; err == nil && i < len(calls); i++ {
		err = a.readCall(fmt.Sprintf("%s.tool_calls[%d]", where, i), calls[i])
	}
	return err
}

func (a *assembler) readCall(where string, raw json.RawMessage) error {
	call, err := objectOf(where, raw)
	if err != nil {
		return err
	}
	index, err := indexOf(where+".index", call["index"])
	if err != nil {
		return err
	}
	function := call // of servers that leave the level between out
	if isSet(call["function"]) {
		if function, err = objectOf(where+".function", call["function"]); err != nil {
			return err
		}
	}
	a.addCall(callPiece{index, textOf(call["id"]), textOf(function["name"]), writtenArguments(function["arguments"])})
	return nil
}

func (a *assembler) addCall(piece callPiece) {
	call := a.continued(piece)
	if call == nil || begins(piece, call) {
		call = &partialCall{}
		a.calls = append(a.calls, call)
	}
	if piece.index >= 0 {
		if a.byIndex == nil {
			a.byIndex = make(map[int]*partialCall)
		}
		a.byIndex[piece.index] = call
	}
	if call.id == "" {
		call.id = piece.id
	}
	if call.name == "" {
		call.name = piece.name
	}
	call.arguments.add(piece.arguments)
}

// continued finds the call that a piece may belong to: by its index, else by its id,
// else the last one. It returns nil when there is none.
func (a *assembler) continued(piece callPiece) *partialCall {
	if piece.index >= 0 {
		return a.byIndex[piece.index]
	}
	if piece.id != "" {
		for _, call := range a.calls {
			if call.id == piece.id {
				return call
			}
		}
	}
	if len(a.calls) == 0 {
		return nil
	}
	return a.calls[len(a.calls)-1]
}

// begins reports whether the piece is the start of another call, although it names
// the place of this one. It brings a name then, and either another id (an id alone
// does not count: some servers make up a new one for every piece), or arguments while
// this one's are already whole.
func begins(piece callPiece, call *partialCall) bool {
	if piece.name == "" {
		return false
	}
	if piece.id != "" && call.id != "" {
		return piece.id != call.id
	}
	return piece.arguments != "" && json.Valid(call.arguments.text)
}

// reply is what has been put together, with ids that are unique. Arguments with half a character
// stay so: whoever parses them refuses them.
func (a *assembler) reply() loop.Reply {
	reply := loop.Reply{Text: a.text.String(), Usage: a.usage, Model: a.model, Reasoning: a.thought.reasoning(), Cut: endOf(a.finish) == endCut}
	taken := make(map[string]bool, len(a.calls))
	for _, partial := range a.calls {
		call := loop.ToolCall{ID: partial.id, Name: partial.name, Arguments: string(partial.arguments.text)}
		if call.Name == "" && strings.TrimSpace(call.Arguments) == "" {
			continue
		}
		if strings.TrimSpace(call.Arguments) == "" && !reply.Cut {
			call.Arguments = "{}" // how some servers say: none
		}
		for call.ID == "" || taken[call.ID] {
			call.ID = newCallID()
		}
		taken[call.ID] = true
		reply.ToolCalls = append(reply.ToolCalls, call)
	}
	return reply
}

// newCallID makes an id that every known server takes back: nine letters and digits.
func newCallID() string { return rand.Text()[:9] }

// ending is what a server's finish_reason says of a reply.
type ending int

const (
	endUnknown  ending = iota // no known end: the reply is no answer
	endWhole                  // the reply is whole
	endCut                    // it ended at a limit of tokens
	endFiltered               // a filter stopped it
	endFailed                 // the server failed, and may not the next time
)

// endOf judges a finish_reason. Only the words that are known for it make a reply whole, or cut;
// what is left is a failure.
func endOf(reason string) ending {
	word := strings.ToLower(strings.NewReplacer("-", "_", " ", "_").Replace(reason))
	mentions := func(parts ...string) bool {
		return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(word, part) })
	}
	switch word {
	case "", // some servers end with [DONE] alone
		"stop", "stop_sequence", "stop_token", "end_turn", "end_of_turn", "eos", "eos_token",
		"end", "done", "complete", "completed", "finished", "normal",
		"tool_calls", "tool_call", "tool_use", "function_call":
		return endWhole
	case "length", "model_length", "max_length", "max_tokens", "max_new_tokens", "max_output_tokens",
		"max_completion_tokens", "token_limit", "error_limit", "model_context_window_exceeded":
		return endCut
	}
	switch {
	case mentions("filter", "safety", "sensitive", "refus", "prohibited", "blocklist", "recitation", "guardrail", "toxic", "spii"):
		return endFiltered
	case mentions("abort", "error", "fail", "cancel", "network", "resource", "timeout", "timed_out", "overload", "unavailable", "malformed"):
		return endFailed
	default:
		return endUnknown
	}
}

// finish judges a reply by the reason for which it ended.
func (m *Model) finish(parts *assembler) (loop.Reply, error) {
	reply := parts.reply()
	end := endOf(parts.finish)
	switch {
	case parts.finish == "" && reply.Text == "" && len(reply.ToolCalls) == 0:
		return loop.Reply{}, m.endpoint.newError(TypeStreamBroken, "the answer was empty")
	case end == endWhole, end == endCut:
		return reply, nil
	case end == endFiltered:
		return loop.Reply{}, m.endpoint.newError(TypeContentFilter,
			fmt.Sprintf("the provider's content filter stopped the reply (finish_reason %q)", parts.finish))
	}
	callErr := m.endpoint.newError(TypeUnfinished,
		fmt.Sprintf("the reply is not complete: it ended with finish_reason %q", parts.finish))
	callErr.permanent = end == endUnknown
	return loop.Reply{}, callErr
}

// Names of the fields in which servers show what a model thinks. What was said in one of them is
// sent back in it.
const (
	fieldContent   = "reasoning_content" // DeepSeek, llama.cpp, SGLang, older vLLM
	fieldReasoning = "reasoning"         // vLLM, Ollama, Groq, OpenRouter
	fieldDetails   = "reasoning_details" // OpenRouter: blocks, some of them signed, which it wants back unchanged
)

// thought is what a model thinks, put together from the chunks of a stream.
type thought struct {
	text    growing
	field   string // of the text; "" while there is none, or it came in the content
	details []fields
}

// read takes the next piece in: the fields of a message, and what its content has of thoughts. What
// has another form than expected is left out: nothing depends on it.
func (t *thought) read(message fields, inContent string) {
	details, _ := listOf(fieldDetails, message[fieldDetails])
	for _, raw := range details {
		if detail, err := objectOf(fieldDetails, raw); err == nil && len(detail) > 0 {
			t.addDetail(detail)
		}
	}
	t.text.add(inContent)
	for _, name := range []string{fieldContent, fieldReasoning} {
		raw := message[name]
		if kindOf(raw) == '"' && len(raw) > len(`""`) && (t.field == "" || t.field == name) {
			t.field = name // a server that has both says the same in them
			t.text.add(unquote(raw))
		}
	}
}

// addDetail takes in a piece of a block: of the last one, if it has the same type and index.
func (t *thought) addDetail(piece fields) {
	n := len(t.details)
	if n == 0 || !same(t.details[n-1], piece, "type") || !same(t.details[n-1], piece, "index") {
		t.details = append(t.details, piece)
		return
	}
	block := t.details[n-1]
	for name, value := range piece {
		grows := slices.Contains([]string{"text", "summary", "data"}, name)
		switch {
		case !isSet(value):
		case grows && kindOf(block[name]) == '"' && kindOf(value) == '"': // still quoted, a character may be cut between them
			text := block[name]
			block[name] = slices.Concat(text[:len(text)-1], value[1:])
		default:
			block[name] = value
		}
	}
}

func same(a, b fields, name string) bool {
	return bytes.Equal(a[name], b[name])
}

// opaque is what [loop.Reasoning].Opaque holds.
type opaque struct {
	Field   string   `json:"field,omitempty"`
	Details []fields `json:"details,omitempty"`
}

// reasoning is what has been put together; nil when there is none.
func (t *thought) reasoning() *loop.Reasoning {
	if len(t.text.text) == 0 && len(t.details) == 0 {
		return nil
	}
	kept, err := json.Marshal(opaque{t.field, t.details})
	if err != nil {
		kept = nil // it was decoded from JSON
	}
	return &loop.Reasoning{Text: t.text.String(), Opaque: kept}
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
