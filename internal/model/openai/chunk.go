package openai

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/toolfleet/toolfleet/internal/model/endpoint"
	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

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
		a.Model, a.ID = lenient.String(chunk["model"]), lenient.String(chunk["id"])
	}
	if usage, is := usageOf(chunk["usage"]); is { // of the whole reply so far; the last one counts
		a.Usage = usage
	}
	choices, err := lenient.List("choices", chunk["choices"])
	for i := 0; err == nil && i < len(choices); i++ {
		err = a.readChoice(fmt.Sprintf("choices[%d]", i), choices[i], delta)
	}
	return err
}

func (a *assembler) readChoice(where string, raw json.RawMessage, delta func(loop.Delta)) error {
	choice, err := lenient.Object(where, raw)
	if err != nil {
		return err
	}
	index, err := lenient.Index(where+".index", choice["index"])
	if err != nil || index > 0 { // another answer, which was never asked for
		return err
	}
	message, err := lenient.Object(where+".delta", choice["delta"])
	if err != nil {
		return err
	}
	if err := a.readMessage(where+".delta", message, delta); err != nil {
		return err
	}
	if reason := lenient.String(choice["finish_reason"]); reason != "" && reason != "null" {
		a.Finish = reason
	}
	return nil
}

func (a *assembler) readMessage(where string, message lenient.Fields, delta func(loop.Delta)) error {
	text, thinks, err := spoken(where+".content", message["content"])
	if err != nil {
		return err
	}
	refusal, _, err := spoken(where+".refusal", message["refusal"])
	if err != nil {
		return err
	}
	a.think(message, thinks)
	a.Text.Add(text)
	a.Text.Add(refusal)
	a.Tell(delta)
	calls, err := lenient.List(where+".tool_calls", message["tool_calls"])
	for i := 0; err == nil && i < len(calls); i++ {
		err = a.readCall(fmt.Sprintf("%s.tool_calls[%d]", where, i), calls[i])
	}
	return err
}

func (a *assembler) readCall(where string, raw json.RawMessage) error {
	call, err := lenient.Object(where, raw)
	if err != nil {
		return err
	}
	index, err := lenient.Index(where+".index", call["index"])
	if err != nil {
		return err
	}
	function := call // of servers that leave the level between out
	if lenient.IsSet(call["function"]) {
		if function, err = lenient.Object(where+".function", call["function"]); err != nil {
			return err
		}
	}
	a.AddCall(endpoint.CallPiece{Index: index, ID: lenient.String(call["id"]), Name: lenient.String(function["name"]), Arguments: lenient.Written(function["arguments"])})
	return nil
}

// Names of the fields in which servers show what a model thinks. What was said in one of them is
// sent back in it.
const (
	fieldContent   = "reasoning_content" // DeepSeek, llama.cpp, SGLang, older vLLM
	fieldReasoning = "reasoning"         // vLLM, Ollama, Groq, OpenRouter
	fieldDetails   = "reasoning_details" // OpenRouter: blocks, some of them signed, which it wants back unchanged
)

// think takes the next piece of a thought in: the fields of a message, and what its content has.
// What has another form than expected is left out: nothing depends on it.
func (a *assembler) think(message lenient.Fields, inContent string) {
	details, _ := lenient.List(fieldDetails, message[fieldDetails])
	for _, raw := range details {
		if detail, err := lenient.Object(fieldDetails, raw); err == nil && len(detail) > 0 {
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
