// Package render makes the texts that a model reads of results: one function for each
// kind of value, and one form for everything that is not ok.
package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/plain"
	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// JSON is the text of a result whose tool has no Render function: its value
// as JSON, after the failure when it is not ok. An earlier result that was read is text.
func JSON(result *protocol.Result) string {
	body, isStored := StoredResult(result, prose.BodyLimit)
	if result.Value != nil && !isStored {
		encoded, err := wire.EncodeValue(result.Value)
		if err != nil {
			body = "[the result cannot be shown: " + err.Error() + "]"
		} else {
			body = prose.FitJSON(encoded, fullTextOf(result).note(wire.PartValue))
		}
	}
	return outcome(result, body)
}

// outcome is the text of a result that may have nothing to show, after the failure when it is not
// ok.
func outcome(result *protocol.Result, text string) string {
	switch {
	case result.Status != protocol.StatusOK:
		return Failure(result, text)
	case text == "":
		return "[done; nothing was returned]"
	default:
		return text
	}
}

// markRoom is more than a mark of what was cut ever has.
const markRoom = 300

// MaxImageBytes is the largest image or document that a model is shown.
const MaxImageBytes = 4 << 20

// MediaPDF is the media type of documents that models take.
const MediaPDF = "application/pdf"

// mediaKind is what people and models call a file of a media type.
func mediaKind(mediaType string) (one, several string) {
	if mediaType == MediaPDF {
		return "a PDF document", "documents"
	}
	return "an image", "images"
}

// Of makes a Render function from the text of a value of type V.
func Of[V protocol.Value](text func(V) string) func(*protocol.Result) string {
	return Cut(func(v V, _ fullText) string { return text(v) })
}

// Cut is [Of] for values that may not be shown whole.
func Cut[V protocol.Value](text func(V, fullText) string) func(*protocol.Result) string {
	return func(result *protocol.Result) string {
		value, ok := result.Value.(V)
		switch {
		case !ok:
			return JSON(result)
		case result.Status != protocol.StatusOK:
			return Failure(result, text(value, fullTextOf(result)))
		default:
			return text(value, fullTextOf(result))
		}
	}
}

// Failure is the one form of everything that is not ok.
func Failure(result *protocol.Result, partial string) string {
	code, what := failureOf(result)
	var b strings.Builder
	b.WriteString(prose.FailureHead(result.Status, code, what))
	fmt.Fprintf(&b, "Next: %s", advice(result.Status, code))
	mark := ""
	if strings.TrimSpace(partial) != "" {
		room := prose.MaxText - utf8.RuneCountInString(b.String()) - markRoom
		shown := prose.Clip(partial, min(room, prose.BodyLimit))
		fmt.Fprintf(&b, "\nPartial output:\n%s", shown)
		if shown != partial {
			mark = fullTextOf(result).mark("")
		}
	} else if utf8.RuneCountInString(what) > prose.BodyLimit/2 {
		mark = fullTextOf(result).mark("")
	}
	b.WriteString(mark)
	return b.String()
}

// failureOf is why a result is not ok.
func failureOf(result *protocol.Result) (code protocol.Code, message string) {
	if result.Error == nil {
		return protocol.Code(result.Status), ""
	}
	return result.Error.Code, strings.TrimSpace(result.Error.Message)
}

// advice tells a model what to do about a failure.
func advice(status protocol.Status, code protocol.Code) string {
	switch status {
	case protocol.StatusTimeout:
		return "the call was stopped, and what it did until then may remain. Do less in one call or, where the tool has a timeout argument and nothing above speaks against it, name a longer one."
	case protocol.StatusCancelled:
		return "the call was stopped on request, and what it did until then may remain. Do not repeat it unless you are asked to."
	case protocol.StatusOutcomeUnknown:
		return codeAdvice(code, "the call may have had all, some or none of its effects. Check what is there before you repeat it.")
	case protocol.StatusRejected:
		return codeAdvice(code, "nothing was run and nothing has changed. Make the call again as the message says.")
	default:
		return codeAdvice(code, "the tool ran and failed. Act on the message; the same call again will most likely fail again.")
	}
}

// codeAdvice is the advice for codes that are not about what the model asked, or
// else the given one.
func codeAdvice(code protocol.Code, other string) string {
	switch code {
	case protocol.CodeQueueTimeout, protocol.CodeDeadline, protocol.CodeFleetFull, protocol.CodeBusy, protocol.CodeQuota, protocol.CodeFleetUnavailable,
		protocol.CodeSandboxUnavailable, protocol.CodeWorkspaceUnavailable:
		return "the fleet did not run the call, and the arguments are not the cause. Try once more; if it fails again, continue without it and say so."
	case protocol.CodeNoWorker:
		return "as far as is known, nothing was run. Continue without it, and say that there was no worker."
	case codes.FileChanged, codes.FileNotRead:
		return "the file is unchanged. Read it, and change its present content."
	case codes.Protected:
		return "nothing has changed, and no other tool can change it either. Leave it as it is; if it has to change, say what and why."
	case protocol.CodePolicyDenied:
		return "nothing was run and nothing has changed. Reach the goal in a way that is allowed, or say what you need and why."
	case codes.EditNotUnique:
		return "the file is unchanged. Put more of the surrounding text into old, or set replace_all to true."
	case protocol.CodeAttemptsExhausted, protocol.CodeSandboxLost:
		return "the call was started but not finished, and what it did until then may remain. Check what is there; if you try again, do less in one call."
	case protocol.CodeStateLost:
		return "nothing was run. If you still need the tool, begin with a new call of it."
	case codes.LoginRequired:
		return "nothing was run, and repeating the call will not help until a person has done what the message says. Continue without it, and say so."
	case codes.NetworkOff:
		return "nothing was run. Do it without the network, or omit the step and say what could not be reached."
	case codes.SandboxUnsupported:
		return "nothing was run. Make the call again without what the sandbox cannot do."
	case codes.SandboxLevel, codes.UnknownPayload, protocol.CodePanic, protocol.CodeInternal, codes.Language:
		return "repeating the call will not help. Continue without it."
	default:
		return other
	}
}

// MCP is the text of what a tool of an MCP server returned.
func MCP(result *protocol.Result) string {
	value, ok := result.Value.(protocol.MCPCallResult)
	if !ok {
		return JSON(result)
	}
	text := prose.Plain(plain.MCP(value))
	if result.Error != nil && result.Error.Message == text {
		text = "" // it is said once
	}
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + fullTextOf(result).mark("")
	}
	for _, note := range value.Notes {
		text = joined(text, "["+note+"]")
	}
	return outcome(result, strings.TrimSuffix(text, "\n"))
}

// ToolRun is the text of a command's result: its output, or when it has none,
// with the failure, what it wrote instead.
func ToolRun(result *protocol.Result) string {
	value, ok := result.Value.(protocol.ToolRunResult)
	if !ok {
		return JSON(result)
	}
	text := jsonText(value.Output, fullTextOf(result))
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
	text := jsonText(output, fullTextOf(result))
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
func jsonText(value json.RawMessage, r fullText) string {
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
	text := jsonText(state.Output, fullTextOf(result))
	if shown := prose.Clip(text, prose.BodyLimit); shown != text {
		text = shown + fullTextOf(result).mark("")
	}
	mark := handleText(result, state)
	switch {
	case result.Status != protocol.StatusOK:
		return joined(Failure(result, text), mark)
	case text == "" && mark == "":
		return "[done; nothing was returned]"
	default:
		return joined(text, mark)
	}
}

// handleText describes the state of a handle; "" if the text before it says all.
func handleText(result *protocol.Result, state wire.DialogState) string {
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
