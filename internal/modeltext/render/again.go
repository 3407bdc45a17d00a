package render

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// againKey names what [Again] says in a JSON object.
const againKey = "[started again]"

// Again is the text of a result, with a line when the call was started more than once. After a lost
// worker the workspace is as one run leaves it, and the world outside of it may not be; after a
// failed attempt neither may be. JSON stays JSON; a number or a truth value has no room for the
// line.
func Again(result *protocol.Result, text string) string {
	note := StartedAgain(result)
	switch {
	case note == "":
		return text
	case isJSON(result.Value) && json.Valid([]byte(text)):
		return Annotated(text, againKey, note)
	default:
		return prose.Ended(text) + "[" + note + "]"
	}
}

// StartedAgain says that a call was started more than once; "" when it was not, or the failure
// says so.
func StartedAgain(result *protocol.Result) string {
	if result.Attempt < 2 || result.Status == protocol.StatusOutcomeUnknown || result.Error.ErrorType() == string(protocol.CodeAttemptsExhausted) {
		return ""
	}
	if failed := len(result.Tries); failed >= result.Attempt-1 {
		return fmt.Sprintf("attempt %d: attempt %d failed with %s, and the tool's retry started the call again; what it did before it failed may still be there, in the workspace too",
			result.Attempt, result.Attempt-1, result.Tries[failed-1].Error.ErrorType())
	}
	return fmt.Sprintf("attempt %d: a worker was lost while the call ran, and it was started again; what it does outside of the workspace may have happened more than once", result.Attempt)
}

// Annotated is a JSON text with a note in it: a property of an object, the last item of an array.
// Other values have no room for one.
func Annotated(text, key, note string) string {
	text = strings.TrimSpace(text)
	quoted := quote(note)
	switch text[0] {
	case '{':
		quoted = quote(key) + ":" + quoted
	case '[':
		quoted = quote("[" + note + "]")
	default:
		return text
	}
	rest, end := text[:len(text)-1], text[len(text)-1:]
	if len(strings.TrimSpace(rest)) > 1 {
		rest += ","
	}
	return rest + quoted + end
}

// quote is a text as a JSON string.
func quote(text string) string {
	quoted, err := prose.JSON(prose.Valid(text))
	if err != nil { // no string is none
		return `""`
	}
	return string(quoted)
}

// isJSON reports whether the text of a value is JSON for its reader.
func isJSON(value protocol.Value) bool {
	switch value.(type) {
	case protocol.ToolRunResult, protocol.UnknownValue, protocol.FilesJSONReadResult, protocol.FilesExistsResult:
		return true
	default:
		return false
	}
}
