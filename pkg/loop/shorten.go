package loop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"unicode/utf8"
)

// ErrTooLong is wrapped by the error of [Model.Reply] for a conversation that is longer than
// the model takes. The Runner then asks again with less of the tool calls that are long ago,
// several times if need be; what was said by people and by the model is never cut. The journal
// keeps all of it.
var ErrTooLong = errors.New("the conversation is longer than the model takes")

// wholeResults is how many of the last tool results are left as they are, after each time that
// the conversation was too long.
func wholeResults() []int { return []int{16, 4, 1, 0} }

// maxCut is how many characters are left of a result, or of arguments, that are cut.
const maxCut = 500

// reply asks the model, again and with less of a conversation that is too long for it. What
// was cut once stays cut in this run.
func (t *turnRun) reply(ctx context.Context, word string, delta func(Delta)) (Reply, error) {
	for {
		request := Request{Messages: t.shown(t.cuts), Tools: t.table.DefinitionsFor(t.provider()), Settings: t.opts.Settings}
		if word != "" {
			request.Messages = appendNotes(request.Messages, []string{word})
		}
		size := sizeOf(request.Messages)
		reply, err := t.model.Reply(ctx, request, delta)
		if refused, is := errors.AsType[*RefusedError](err); is && ctx.Err() == nil && t.leaveOut(ctx, refused) {
			continue
		}
		if !errors.Is(err, ErrTooLong) || ctx.Err() != nil || !t.cutBelow(size) {
			return reply, err
		}
		t.logger.InfoContext(ctx, "conversation is too long for the model and shown in part",
			slog.String("session_id", string(t.id)), slog.Int("characters", size))
	}
}

// shown is the conversation after it was too long so many times.
func (t *turnRun) shown(cuts int) []Message {
	messages := t.session.conversation(t.system())
	t.withoutRefused(messages)
	if cuts > 0 {
		shorten(messages, wholeResults()[cuts-1])
	}
	return messages
}

// cutBelow cuts until the conversation is smaller than it was; it reports whether that is possible.
func (t *turnRun) cutBelow(size int) bool {
	for t.cuts < len(wholeResults()) {
		t.cuts++
		if sizeOf(t.shown(t.cuts)) < size {
			return true
		}
	}
	return false
}

// shorten cuts the tool calls before the last so many results, in place. Arguments are left as
// they are where a result of the same reply is.
func shorten(messages []Message, whole int) {
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

// conversationLong is why what was long ago is cut.
const conversationLong = "the conversation is long"

// cut returns the beginning of a long text, and says how much is missing, and why.
func cut(text, why string) string {
	if utf8.RuneCountInString(text) <= 2*maxCut {
		return text
	}
	head := []rune(text)[:maxCut]
	return string(head) + fmt.Sprintf("\n[%d more characters were here, and are left out because %s]", utf8.RuneCountInString(text)-maxCut, why)
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
		size += len(messages[i].Text)
		for _, call := range messages[i].ToolCalls {
			size += len(call.Arguments)
		}
		if messages[i].Image != nil {
			size += len(messages[i].Image.Data)
		}
	}
	return size
}
