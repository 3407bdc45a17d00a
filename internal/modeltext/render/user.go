package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// Output is the JSON value that a tool of the user's own returned; nil without one. That of an MCP
// server which returns a text is the JSON in the text, or the text.
func Output(result *protocol.Result) (output any) {
	var body json.RawMessage
	switch value := result.Value.(type) {
	case protocol.ToolRunResult:
		body = value.Output
	case protocol.MCPCallResult:
		if body = value.Structured; body == nil && len(value.Content) == 1 && value.Content[0].Type == "text" {
			output, body = value.Content[0].Text, json.RawMessage(value.Content[0].Text)
		}
	case protocol.UnknownValue:
		body, _ = value.Output() // a value of another kind has none
	}
	if !json.Valid(body) {
		return output
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	_ = decoder.Decode(&output) // it is valid
	return output
}

// jsonText is a JSON value as a model reads it: a string as it is, null as nothing.
func jsonText(value json.RawMessage, r rest) string {
	var text string
	if json.Unmarshal(value, &text) == nil {
		return text // null too
	}
	return prose.FitJSON(value, r.note(""))
}

// DialogHandle is the handle of the dialog that a call opened: short, and the same in
// every attempt.
func DialogHandle(opened protocol.CallID) string {
	const length = 12
	return "h-" + string(opened[max(0, len(opened)-length):])
}

// Dialog is the text of what a stateful tool answered, with how it can be gone on with.
func Dialog(result *protocol.Result) string {
	state, ok := wire.DialogStateOf(result.Value)
	if !ok {
		if result.Status == protocol.StatusOutcomeUnknown {
			return Failure(result, "") + "\n[the state behind the handle was most likely lost with the worker; if tool_continue says so too, begin again]"
		}
		return JSON(result)
	}
	text := jsonText(state.Output, restOf(result))
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + restOf(result).mark("")
	}
	mark := dialogMark(result, state)
	switch {
	case result.Status != protocol.StatusOK:
		return joined(Failure(result, text), mark)
	case text == "" && mark == "":
		return "[done; nothing was returned]"
	default:
		return joined(text, mark)
	}
}

// dialogMark says how a dialog stands; "" when there is nothing that the rest does not say.
func dialogMark(result *protocol.Result, state wire.DialogState) string {
	_, opening := result.Value.(wire.DialogOpenResult)
	handle := DialogHandle(state.Dialog)
	switch {
	case state.Ending == "" && opening:
		return fmt.Sprintf("[handle %s: tool_continue continues, and tool_end ends it. It ends by itself after %s without a call.]",
			handle, state.Idle.Duration().Round(time.Second))
	case state.Ending == "":
		return fmt.Sprintf("[handle %s can be continued]", handle)
	case opening, result.Error != nil && result.Error.Code == protocol.CodeStateLost:
		return ""
	default:
		return fmt.Sprintf("[handle %s has ended: %s]", handle, state.Ending)
	}
}

func joined(text, mark string) string {
	if text == "" || mark == "" {
		return text + mark
	}
	return text + "\n" + mark
}
