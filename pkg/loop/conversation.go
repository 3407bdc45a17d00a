package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/toolfleet/toolfleet/internal/modeltext/prose"
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
	ToolCallID string // of [PartAttachment] the [Attachment].ID
	Kind       PartKind
}

// PartKind is which part of a tool call it is, or an attachment of an input.
type PartKind string

// Every kind.
const (
	PartImage  PartKind = "image"     // the image or document of its result
	PartResult PartKind = "result"    // the text of its result, and the image
	PartCall   PartKind = "tool_call" // its tool's name and arguments

	PartAttachment PartKind = "attachment" // an image or document of the user's
)

// maxReason bounds how much of a server's message is repeated to the model, in characters.
const maxReason = 300

// conversation is the conversation of a session as a run of a turn shows it to models.
type conversation struct {
	*turnRun

	compacted bool            // this run asks for no further summary
	cuts      int             // how often the conversation was too long for the model
	refused   map[Part]string // what the model's server refused in this run, and is not journaled
}

// leaveOut leaves the refused parts out of the requests of this run. It reports whether that
// changes any of them.
func (c *conversation) leaveOut(ctx context.Context, refused *RefusedError) bool {
	changed := false
	for _, part := range refused.Parts {
		_, known := c.session.leftOut[part]
		if _, pending := c.refused[part]; known || pending || !c.session.has(part) {
			continue
		}
		if c.refused == nil {
			c.refused = make(map[Part]string)
		}
		c.refused[part], changed = prose.Short(prose.Valid(refused.Error()), maxReason), true
		c.logger.WarnContext(ctx, "the model's server refuses a part of the conversation, which is left out",
			slog.String("session_id", string(c.id)), slog.String("tool_call_id", part.ToolCallID),
			slog.String("part", string(part.Kind)), slog.Any("error", refused.Err))
	}
	return changed
}

// leftOutEvents journal what the request that was just answered had left out for the first time.
func (c *conversation) leftOutEvents(at Event) []Event {
	var events []Event
	for part, reason := range c.refused {
		events = append(events, Event{
			Type: EventPartLeftOut, Turn: at.Turn, Step: at.Step, CallFields: CallFields{ToolCallID: part.ToolCallID}, Part: part.Kind, Text: reason,
		})
	}
	return events
}

// withoutRefused leaves parts out of a conversation, in place, and says so there.
func (c *conversation) withoutRefused(messages []Message) {
	leftOut := maps.Clone(c.session.leftOut)
	maps.Copy(leftOut, c.refused)
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
		message.leaveOut(func(a *Attachment) string { // texts are part of the message, see inputOf
			switch reason, out := leftOut[Part{a.ID, PartAttachment}]; {
			case !out:
				return ""
			case isReference(reason):
				return reason
			default:
				return note("attached file "+a.Name, reason)
			}
		})
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

// nameLeftOut replaces the name of a tool that is left out.
const nameLeftOut = "left_out"

func note(what, reason string) string {
	return fmt.Sprintf("[The %s was left out, because the model's server refuses it: %s]", what, reason)
}

// ErrTooLong is wrapped by the error of [Model.Reply] for a conversation that is longer than the
// model takes. The Runner then has it compacted ([Compaction]), or else asks again with shorter
// results of old tool calls, several times if need be. Texts of people and of the model are never
// cut. The journal keeps all of it.
var ErrTooLong = errors.New("the conversation is longer than the model takes")

// wholeResults is how many of the last tool results are left as they are, after each time that
// the conversation was too long.
func wholeResults() []int { return []int{16, 4, 1, 0} }

// maxCut is how many characters are left of a result, or of arguments, that are cut.
const maxCut = 500

// reply asks the model, again and with less of a conversation that is too long for it. What
// was cut once stays cut in this run.
func (c *conversation) reply(ctx context.Context, word string, delta func(Delta)) (Reply, error) {
	for {
		request := c.request()
		if word != "" {
			request.Messages = appendNotes(request.Messages, []string{word})
		}
		size, asked := sizeOf(request.Messages), request.Tokens()
		reply, err := c.model.Reply(ctx, request, delta)
		if err == nil {
			reply.Usage = reply.Counted(asked)
		}
		if refused, is := errors.AsType[*RefusedError](err); is && ctx.Err() == nil && c.leaveOut(ctx, refused) {
			continue
		}
		if !errors.Is(err, ErrTooLong) || ctx.Err() != nil {
			return reply, err
		}
		switch done, failed := c.shortenTooLong(ctx, size); {
		case failed != nil:
			return reply, failed
		case !done:
			return reply, err
		}
	}
}

// request is the request for the next reply.
func (c *conversation) request() Request {
	turn := c.session.open()
	request := Request{
		Session: c.id, Messages: c.messages(c.cuts), Tools: c.table.DefinitionsFor(c.provider()), Settings: c.opts.Settings,
		Replies: c.session.replies(), Turn: turn.number, Step: len(turn.steps) + 1,
	}
	if turn.lastAt > 0 {
		request.Tools = nil
	}
	return request
}

// messages is the conversation after it was too long so many times.
func (c *conversation) messages(cuts int) []Message {
	messages := c.session.conversation(c.system())
	c.withoutRefused(messages)
	if cuts > 0 {
		shorten(messages, wholeResults()[cuts-1])
	}
	return messages
}

// cutBelow cuts until the conversation is smaller than it was; it reports whether that is possible.
func (c *conversation) cutBelow(ctx context.Context, size int) bool {
	for c.cuts < len(wholeResults()) {
		c.cuts++
		if sizeOf(c.messages(c.cuts)) < size {
			c.logger.InfoContext(ctx, "conversation is too long for the model and shown in part",
				slog.String("session_id", string(c.id)), slog.Int("characters", size))
			return true
		}
	}
	return false
}

// shorten cuts the tool calls before the last so many results, in place. Arguments are left as
// they are where a result of the same reply is. Of the inputs with attachments only the last one
// keeps them.
func shorten(messages []Message, whole int) {
	leaveOutOlder(messages)
	first := len(messages)
	for i := len(messages) - 1; i >= 0 && whole > 0; i-- {
		if messages[i].Role == RoleTool {
			first = i
			whole--
		}
	}
	asked := first
	for asked < len(messages) && asked > 0 && messages[asked].Role == RoleTool {
		asked--
	}
	for i := range messages[:first] {
		message := &messages[i]
		if message.Role == RoleTool {
			message.Text, message.Image = cut(message.Text, conversationLong), nil
		}
		for j := range message.ToolCalls { // which are the conversation's own
			if i < asked {
				message.ToolCalls[j].Arguments = cutArguments(message.ToolCalls[j].Arguments)
			}
		}
	}
}

// leaveOutOlder leaves out the attachments of all messages but the last one that has some.
func leaveOutOlder(messages []Message) {
	newest := true
	for i := range slices.Backward(messages) {
		if !newest {
			messages[i].leaveOut(func(a *Attachment) string {
				return "[The attached file " + a.Name + " is left out because " + conversationLong + "]"
			})
		}
		newest = newest && len(messages[i].Attachments) == 0
	}
}

// conversationLong is why what was long ago is cut.
const conversationLong = "the conversation is long"

// cut returns the beginning of a long text, and says how much is missing, and why.
func cut(text, why string) string {
	length := utf8.RuneCountInString(text)
	if length <= 2*maxCut {
		return text
	}
	return text[:prose.Offset(text, maxCut)] + fmt.Sprintf("\n[%d more characters were here, and are left out because %s]", length-maxCut, why)
}

// cutArguments does the same to arguments, which have to stay a JSON object.
func cutArguments(arguments string) string {
	short := cut(arguments, conversationLong)
	if short == arguments {
		return arguments
	}
	object, err := json.Marshal(map[string]string{"[left out]": short})
	if err != nil {
		return "{}"
	}
	return string(object)
}

// sizeOf counts the bytes that a model reads, more or less.
func sizeOf(messages []Message) int {
	size := 0
	for i := range messages {
		m := &messages[i]
		size += len(m.Text) + len(m.Attachments)*attachmentForModel
		for _, call := range m.ToolCalls {
			size += len(call.Arguments)
		}
		if m.Image != nil {
			size += attachmentForModel
		}
	}
	return size
}

// emptyReply is the message to a model after an empty reply. The journal has neither.
const emptyReply = "[Your last reply was empty. Answer, or ask for a tool.]"

// empty reports whether the reply says nothing at all.
func (r *Reply) empty() bool {
	return strings.TrimSpace(r.Text) == "" && len(r.ToolCalls) == 0 && !r.Cut && !slices.ContainsFunc(r.Native, func(c NativeCall) bool { return c.Image != nil })
}

// Messages to the model after a reply that was cut.
const (
	cutText  = "[Your reply was cut off at the limit of output tokens. Go on exactly where it stopped, and repeat nothing.]"
	cutCalls = "[Your reply was cut off at the limit of output tokens: its last tool call may be incomplete. Ask for less at a time.]"
)

// wordAfter returns the messages to the model after a step that was cut, unless the turn ended
// there.
func (t *turn) wordAfter(step int) []string {
	switch s := &t.steps[step]; {
	case !s.cut, step == len(t.steps)-1 && t.result != nil:
		return nil
	case len(s.calls) > 0:
		return []string{cutCalls}
	default:
		return []string{cutText}
	}
}

// cutAgain reports whether the last reply was cut, as was the one before it: the word to the model
// did not help.
func (t *turn) cutAgain() bool {
	n := len(t.steps)
	return n > 1 && t.steps[n-1].cut && t.steps[n-2].cut
}

// text is the last that the model said: a text that was cut, with what followed it.
func (t *turn) text() string {
	text := ""
	for i := range slices.Backward(t.steps) {
		if i < len(t.steps)-1 && (!t.steps[i].cut || len(t.steps[i].calls) > 0) {
			break
		}
		text = t.steps[i].text + text
	}
	return text
}

// valid is reasoning as it is journaled; nil when there is none.
func (r *Reasoning) valid() *Reasoning {
	if r == nil || r.Text == "" && len(r.Opaque) == 0 {
		return nil
	}
	valid := &Reasoning{Text: prose.Valid(r.Text)}
	if json.Valid(r.Opaque) { // else no journal could keep it
		valid.Opaque = r.Opaque
	}
	return valid
}
