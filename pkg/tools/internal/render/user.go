package render

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/internal/prose"
	"github.com/toolfleet/toolfleet/pkg/tools/plain"
)

// ToolRun is the text of a command's result: its output, or when it has none,
// with the failure, what it wrote instead.
func ToolRun(result *protocol.Result) string {
	value, ok := result.Value.(protocol.ToolRunResult)
	if !ok {
		return JSON(result)
	}
	text := jsonText(value.Output, restOf(result))
	if value.Output == nil {
		text = prose.Plain(string(plain.Written(&value.Execution)))
	}
	return outcome(result, text)
}

// User is the text of a result of a handler.
func User(result *protocol.Result) string {
	value, ok := result.Value.(protocol.UnknownValue)
	if !ok {
		return JSON(result)
	}
	output, err := value.Output()
	if err != nil {
		return JSON(result)
	}
	text := jsonText(output, restOf(result))
	return outcome(result, text)
}

// jsonText is a JSON value as a model reads it: a string as it is, null as nothing.
func jsonText(value json.RawMessage, r rest) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text // null too
	}
	return prose.FitJSON(value, r.note(""))
}
