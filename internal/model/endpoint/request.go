package endpoint

import (
	"encoding/json"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// NoText stands for a text that is empty: servers reject a message without a content.
const NoText = "(empty)"

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
