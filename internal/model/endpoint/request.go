package endpoint

import (
	"encoding/json"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolfleet/toolfleet/pkg/tools"
)

// NoText stands for a text that is empty: servers reject a message without a content.
const NoText = "(empty)"

// TextOf is a text, or what stands for one that is empty.
func TextOf(text string) string {
	if text == "" {
		return NoText
	}
	return text
}

// SchemaOf is the schema of a tool's arguments; an object without properties if it has none.
func SchemaOf(definition tools.Definition) json.RawMessage {
	if len(definition.Schema) > 0 {
		return definition.Schema
	}
	return json.RawMessage(`{"type":"object","properties":{}}`)
}

// Kept is a piece of a reply as [loop.Reasoning].Opaque has it. Texts and tool calls are the
// conversation's; only their signatures and positions are kept.
type Kept struct {
	Type      string          `json:"type"`
	Text      int             `json:"text,omitempty"` // its length in bytes
	Signature string          `json:"signature,omitempty"`
	Raw       json.RawMessage `json:"raw,omitempty"` // of a piece that is only the provider's
}

// maxName is how many characters a name may have.
const maxName = 64

// ToolName is the name of a tool as servers take it back. A model may make up others, and a server
// that refuses one would refuse every further request of the session.
func ToolName(written string) string {
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

// Arguments is what the model wrote if that is a JSON object, else an object
// that holds it. One with half a surrogate pair is none: several servers fail on it.
func Arguments(written string) string {
	if jsontext.Value(written).IsValid(jsontext.AllowDuplicateNames(true)) && strings.HasPrefix(strings.TrimSpace(written), "{") {
		return written
	}
	wrapped, err := json.Marshal(map[string]string{"invalid_arguments": written})
	if err != nil {
		return "{}"
	}
	return string(wrapped)
}
