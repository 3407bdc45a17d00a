package openai

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

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
