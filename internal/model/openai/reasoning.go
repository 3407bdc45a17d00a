package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

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
	text    strings.Builder
	field   string // of the text; "" while there is none
	details []map[string]json.RawMessage
}

// read takes the next chunk in, and returns its piece of the text. What has another form than
// expected is left out: nothing depends on it.
func (t *thought) read(data []byte) string {
	if !bytes.Contains(data, []byte(`"reasoning`)) {
		return ""
	}
	var chunk struct {
		Choices []struct {
			Index int                        `json:"index"`
			Delta map[string]json.RawMessage `json:"delta"`
		} `json:"choices"`
	}
	if json.Unmarshal(data, &chunk) != nil {
		return ""
	}
	piece := ""
	for _, choice := range chunk.Choices {
		if choice.Index != 0 {
			continue // never asked for
		}
		var details []map[string]json.RawMessage
		if json.Unmarshal(choice.Delta[fieldDetails], &details) == nil {
			for _, detail := range details {
				t.addDetail(detail)
			}
		}
		for _, name := range []string{fieldContent, fieldReasoning} {
			var text string
			if json.Unmarshal(choice.Delta[name], &text) == nil && text != "" && (t.field == "" || t.field == name) {
				t.field, piece = name, piece+text // a server that has both says the same in them
			}
		}
	}
	t.text.WriteString(piece)
	return piece
}

// addDetail takes in a piece of a block: of the last one, if it has the same type and index.
func (t *thought) addDetail(piece map[string]json.RawMessage) {
	n := len(t.details)
	if n == 0 || !same(t.details[n-1], piece, "type") || !same(t.details[n-1], piece, "index") {
		t.details = append(t.details, piece)
		return
	}
	block := t.details[n-1]
	for name, value := range piece {
		var text, more string
		grows := slices.Contains([]string{"text", "summary", "data"}, name)
		switch {
		case !isSet(value):
		case grows && json.Unmarshal(block[name], &text) == nil && json.Unmarshal(value, &more) == nil:
			block[name], _ = json.Marshal(text + more) // a string always encodes
		default:
			block[name] = value
		}
	}
}

func same(a, b map[string]json.RawMessage, name string) bool {
	return bytes.Equal(a[name], b[name])
}

// opaque is what [loop.Reasoning].Opaque holds.
type opaque struct {
	Field   string                       `json:"field,omitempty"`
	Details []map[string]json.RawMessage `json:"details,omitempty"`
}

// reasoning is what has been put together; nil when there is none.
func (t *thought) reasoning() *loop.Reasoning {
	if t.field == "" && len(t.details) == 0 {
		return nil
	}
	kept, err := json.Marshal(opaque{t.field, t.details})
	if err != nil {
		kept = nil // it was decoded from JSON
	}
	return &loop.Reasoning{Text: t.text.String(), Opaque: kept}
}

// sentBack is reasoning as fields of the message that it was thought for: as it came, blocks before
// their text. It is nil for none, or for another adapter's.
func sentBack(r *loop.Reasoning) map[string]json.RawMessage {
	if r == nil {
		return nil
	}
	var kept opaque
	switch {
	case json.Unmarshal(r.Opaque, &kept) != nil:
		return nil
	case len(kept.Details) > 0:
		details, err := json.Marshal(kept.Details)
		if err != nil {
			return nil
		}
		return map[string]json.RawMessage{fieldDetails: details}
	case kept.Field == fieldContent, kept.Field == fieldReasoning:
		text, err := json.Marshal(r.Text)
		if err != nil {
			return nil
		}
		return map[string]json.RawMessage{kept.Field: text}
	default:
		return nil
	}
}
