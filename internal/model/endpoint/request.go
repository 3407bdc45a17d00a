package endpoint

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolfleet/toolfleet/internal/model/lenient"
	"github.com/toolfleet/toolfleet/pkg/loop"
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

// The types of pieces that are texts and tool calls; all others are only the provider's.
const (
	KeptText = "text"
	KeptCall = "call"
)

// Replay is how an adapter writes what the model said, piece by piece. A signature may be "".
type Replay struct {
	Text func(said, signature string)
	Call func(call *loop.ToolCall, signature string)
	Raw  func(piece json.RawMessage)
}

// Message writes an assistant message in the order in which its reply came, as far as that was
// kept; it has at least a text or a call.
func (r Replay) Message(message *loop.Message, kept []Kept) {
	text, calls, written := message.Text, message.ToolCalls, false
	addCall := func(signature string) {
		r.Call(&calls[0], signature)
		calls, written = calls[1:], true
	}
	for _, piece := range kept {
		isCall := piece.Type == KeptCall || piece.Type == "tool_use" // of journals of Anthropic's models
		switch {
		case isCall && len(calls) > 0:
			addCall(piece.Signature)
		case isCall:
		case piece.Raw != nil:
			r.Raw(piece.Raw)
		case piece.Text <= len(text):
			end := piece.Text
			for end < len(text) && !utf8.RuneStart(text[end]) { // bytes that were no UTF-8 have become more
				end++
			}
			if said := text[:end]; strings.TrimSpace(said) != "" || piece.Signature != "" {
				r.Text(said, piece.Signature)
				written = true
			}
			text = text[end:]
		}
	}
	if strings.TrimSpace(text) != "" {
		r.Text(text, "")
	} else if !written && len(calls) == 0 {
		r.Text(NoText, "")
	}
	for len(calls) > 0 {
		addCall("")
	}
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

// IsNative reports whether a tool is declared to the provider in a type that begins with kind.
func IsNative(definition tools.Definition, provider, kind string) bool {
	declared, err := lenient.Object("", definition.Native[provider])
	return err == nil && strings.HasPrefix(lenient.String(declared["type"]), kind)
}

// NativeName is the name of the offered tool that is declared to the provider in a type that begins
// with kind; kind if there is none.
func NativeName(offered []tools.Definition, provider, kind string) string {
	for _, definition := range offered {
		if IsNative(definition, provider, kind) {
			return definition.Name
		}
	}
	return kind
}

// NativeImage is an image of base64; nil if it is none, or none that models take.
func NativeImage(mediaType, encoded string) *loop.Image {
	data, err := base64.StdEncoding.DecodeString(encoded)
	switch mediaType {
	case "image/png", "image/jpeg", "image/gif", "image/webp":
	default:
		return nil
	}
	if err != nil || len(data) == 0 {
		return nil
	}
	return &loop.Image{MediaType: mediaType, Data: data}
}

// NativeText is the first of the named fields that is a text; "" if none is.
func NativeText(object lenient.Fields, names ...string) string {
	for _, name := range names {
		if text := lenient.String(object[name]); text != "" {
			return text
		}
	}
	return ""
}
