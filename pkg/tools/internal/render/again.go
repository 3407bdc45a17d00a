package render

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
)

// Again is the text of a result, with a line when the call was started more than once: the
// workspace is as one run leaves it, the world outside of it may not be. JSON stays JSON; a number
// or a truth value has no room for the line.
func Again(result *protocol.Result, text string) string {
	if result.Attempt < 2 || result.Status == protocol.StatusOutcomeUnknown || result.Error.ErrorType() == string(protocol.CodeAttemptsExhausted) {
		return text // the failure says it
	}
	note := fmt.Sprintf("attempt %d: a worker was lost while the call ran, and it was started again; what it does outside of the workspace may have happened more than once", result.Attempt)
	if !isJSON(result.Value) || !json.Valid([]byte(text)) {
		return prose.Ended(text) + "[" + note + "]"
	}
	text = strings.TrimSpace(text)
	switch text[0] {
	case '{':
		note = `"[started again]":` + strconv.Quote(note)
	case '[':
		note = strconv.Quote("[" + note + "]")
	default:
		return text
	}
	rest, end := text[:len(text)-1], text[len(text)-1:]
	if len(strings.TrimSpace(rest)) > 1 {
		rest += ","
	}
	return rest + note + end
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
