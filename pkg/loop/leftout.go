package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
)

// RefusedError is the error of [Model.Reply] when the model's server refuses a request because of
// parts of the conversation. The Runner asks again without them, and tells the model so. Once a
// request without them is answered, the journal says that they are left out, so they are in no
// later request of the session, or of a fork of it.
type RefusedError struct {
	Parts []Part
	Err   error
}

func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns what the server said.
func (e *RefusedError) Unwrap() error { return e.Err }

// Part is a part of a conversation that can be left out.
type Part struct {
	ToolCallID string
	Kind       PartKind
}

// PartKind is which part of a tool call it is.
type PartKind string

// Every kind.
const (
	PartImage  PartKind = "image"     // the image of its result
	PartResult PartKind = "result"    // the text of its result, and the image
	PartCall   PartKind = "tool_call" // its tool's name and arguments
)

// maxReason bounds how much of a server's message is repeated to the model, in characters.
const maxReason = 300

// leaveOut leaves the refused parts out of the requests of this run. It reports whether that
// changes any of them.
func (t *turnRun) leaveOut(ctx context.Context, refused *RefusedError) bool {
	news := false
	for _, part := range refused.Parts {
		_, known := t.session.leftOut[part]
		if _, pending := t.refused[part]; known || pending || !t.session.taken[part.ToolCallID] {
			continue
		}
		if t.refused == nil {
			t.refused = make(map[Part]string)
		}
		reason := []rune(validText(refused.Error()))
		t.refused[part], news = string(reason[:min(len(reason), maxReason)]), true
		t.logger.WarnContext(ctx, "the model's server refuses a part of the conversation, which is left out",
			slog.String("session_id", string(t.id)), slog.String("tool_call_id", part.ToolCallID),
			slog.String("part", string(part.Kind)), slog.Any("error", refused.Err))
	}
	return news
}

// leftOutEvents journal what the request that was just answered had left out for the first time.
func (t *turnRun) leftOutEvents(at Event) []Event {
	var events []Event
	for part, reason := range t.refused {
		events = append(events, Event{
			Type: EventPartLeftOut, Turn: at.Turn, Step: at.Step, CallFields: CallFields{ToolCallID: part.ToolCallID}, Part: part.Kind, Text: reason,
		})
	}
	return events
}

// withoutRefused leaves parts out of a conversation, in place, and says so there.
func (t *turnRun) withoutRefused(messages []Message) {
	leftOut := maps.Clone(t.session.leftOut)
	maps.Copy(leftOut, t.refused)
	if len(leftOut) == 0 {
		return
	}
	for i := range messages {
		message := &messages[i]
		for j := range message.ToolCalls { // which are the conversation's own
			call := &message.ToolCalls[j]
			if reason, out := leftOut[Part{call.ID, PartCall}]; out {
				arguments, _ := json.Marshal(map[string]string{"left_out": note("tool call", reason)}) // strings always encode
				call.Name, call.Arguments = nameLeftOut, string(arguments)
			}
		}
		if message.Role != RoleTool {
			continue
		}
		if reason, out := leftOut[Part{message.ToolCallID, PartImage}]; out {
			message.Text, message.Image = message.Text+"\n"+note("image", reason), nil
		}
		if reason, out := leftOut[Part{message.ToolCallID, PartResult}]; out {
			message.Text, message.Image = note("result", reason), nil
		}
		if _, out := leftOut[Part{message.ToolCallID, PartCall}]; out {
			message.Name = nameLeftOut
		}
	}
}

// nameLeftOut stands for the name of a tool that is left out.
const nameLeftOut = "left_out"

func note(what, reason string) string {
	return fmt.Sprintf("[The %s was left out, because the model's server refuses it: %s]", what, reason)
}
