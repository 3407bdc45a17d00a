package openai

import (
	"crypto/rand"
	"encoding/json"
	"strings"

	sdk "github.com/sashabaranov/go-openai"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// assembler puts a reply together from the chunks of a stream.
type assembler struct {
	text    strings.Builder
	calls   []*partialCall
	byIndex map[int]*partialCall
	finish  sdk.FinishReason
	usage   protocol.Usage
	model   string
	thought thought
}

type partialCall struct {
	id, name  string
	arguments strings.Builder
}

// read takes the next chunk in, and tells delta its text.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	var chunk sdk.ChatCompletionStreamResponse
	if err := json.Unmarshal(data, &chunk); err != nil {
		return err
	}
	if reasoning := a.thought.read(data); reasoning != "" {
		delta(loop.Delta{Reasoning: reasoning})
	}
	a.add(&chunk, delta)
	return nil
}

func (a *assembler) add(chunk *sdk.ChatCompletionStreamResponse, delta func(loop.Delta)) {
	if a.model == "" {
		a.model = chunk.Model
	}
	if chunk.Usage != nil { // of the whole reply so far; the last one counts
		a.usage = protocol.Usage{
			InputTokens:  int64(chunk.Usage.PromptTokens),
			OutputTokens: int64(chunk.Usage.CompletionTokens),
		}
	}
	for i := range chunk.Choices {
		choice := &chunk.Choices[i]
		if choice.Index != 0 {
			continue // never asked for
		}
		if text := choice.Delta.Content + choice.Delta.Refusal; text != "" {
			a.text.WriteString(text)
			delta(loop.Delta{Text: text})
		}
		for _, piece := range choice.Delta.ToolCalls {
			a.addCall(piece)
		}
		if choice.FinishReason != "" && choice.FinishReason != sdk.FinishReasonNull {
			a.finish = choice.FinishReason
		}
	}
}

func (a *assembler) addCall(piece sdk.ToolCall) {
	call := a.continued(piece)
	if call == nil || begins(piece, call) {
		call = &partialCall{}
		a.calls = append(a.calls, call)
	}
	if piece.Index != nil {
		if a.byIndex == nil {
			a.byIndex = make(map[int]*partialCall)
		}
		a.byIndex[*piece.Index] = call
	}
	if call.id == "" {
		call.id = piece.ID
	}
	if call.name == "" {
		call.name = piece.Function.Name
	}
	call.arguments.WriteString(piece.Function.Arguments)
}

// continued finds the call that a piece may belong to: by its index, else by its id,
// else the last one. It returns nil when there is none.
func (a *assembler) continued(piece sdk.ToolCall) *partialCall {
	if piece.Index != nil {
		return a.byIndex[*piece.Index]
	}
	if piece.ID != "" {
		for _, call := range a.calls {
			if call.id == piece.ID {
				return call
			}
		}
	}
	if len(a.calls) == 0 {
		return nil
	}
	return a.calls[len(a.calls)-1]
}

// begins reports whether the piece is the start of another call, although it names
// the place of this one. It brings a name then, and either another id (an id alone
// does not count: some servers make up a new one for every piece), or arguments while
// this one's are already whole.
func begins(piece sdk.ToolCall, call *partialCall) bool {
	if piece.Function.Name == "" {
		return false
	}
	if piece.ID != "" && call.id != "" {
		return piece.ID != call.id
	}
	return piece.Function.Arguments != "" && json.Valid([]byte(call.arguments.String()))
}

// cut reports whether the reply ended at a limit of output tokens, in the words of several servers.
func (a *assembler) cut() bool {
	switch strings.ToLower(string(a.finish)) {
	case "length", "max_tokens", "model_length":
		return true
	default:
		return false
	}
}

// reply is what has been put together, with ids that are unique.
func (a *assembler) reply() loop.Reply {
	reply := loop.Reply{Text: a.text.String(), Usage: a.usage, Model: a.model, Reasoning: a.thought.reasoning()}
	taken := make(map[string]bool, len(a.calls))
	for _, partial := range a.calls {
		call := loop.ToolCall{ID: partial.id, Name: partial.name, Arguments: partial.arguments.String()}
		if call.Name == "" && strings.TrimSpace(call.Arguments) == "" {
			continue
		}
		if strings.TrimSpace(call.Arguments) == "" && !a.cut() {
			call.Arguments = "{}" // how some servers say: none
		}
		for call.ID == "" || taken[call.ID] {
			call.ID = newCallID()
		}
		taken[call.ID] = true
		reply.ToolCalls = append(reply.ToolCalls, call)
	}
	return reply
}

// newCallID makes an id that every known server takes back: nine letters and digits.
func newCallID() string { return rand.Text()[:9] }
