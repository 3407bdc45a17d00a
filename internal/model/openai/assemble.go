package openai

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// assembler puts a reply together from the chunks of a stream.
type assembler struct {
	text    growing
	calls   []*partialCall
	byIndex map[int]*partialCall
	finish  string // why the reply ended, in the server's word; "" when it does not say
	usage   protocol.Usage
	model   string
	thought thought
}

type partialCall struct {
	id, name  string
	arguments growing
}

// callPiece is a piece of a tool call.
type callPiece struct {
	index               int // -1 when there is none
	id, name, arguments string
}

// read takes the next chunk in, and tells delta its text.
func (a *assembler) read(data []byte, delta func(loop.Delta)) error {
	var chunk fields
	if err := json.Unmarshal(data, &chunk); err != nil {
		if json.Valid(data) {
			return wrongForm("a chunk", data, "an object")
		}
		return err
	}
	if a.model == "" {
		a.model = textOf(chunk["model"])
	}
	if usage, is := usageOf(chunk["usage"]); is { // of the whole reply so far; the last one counts
		a.usage = usage
	}
	choices, err := listOf("choices", chunk["choices"])
	for i := 0; err == nil && i < len(choices); i++ {
		err = a.readChoice(fmt.Sprintf("choices[%d]", i), choices[i], delta)
	}
	return err
}

func (a *assembler) readChoice(where string, raw json.RawMessage, delta func(loop.Delta)) error {
	choice, err := objectOf(where, raw)
	if err != nil {
		return err
	}
	index, err := indexOf(where+".index", choice["index"])
	if err != nil || index > 0 { // another answer, which was never asked for
		return err
	}
	message, err := objectOf(where+".delta", choice["delta"])
	if err != nil {
		return err
	}
	if err := a.readMessage(where+".delta", message, delta); err != nil {
		return err
	}
	if reason := textOf(choice["finish_reason"]); reason != "" && reason != "null" {
		a.finish = reason
	}
	return nil
}

func (a *assembler) readMessage(where string, message fields, delta func(loop.Delta)) error {
	text, thinks, err := spoken(where+".content", message["content"])
	if err != nil {
		return err
	}
	refusal, _, err := spoken(where+".refusal", message["refusal"])
	if err != nil {
		return err
	}
	a.thought.read(message, thinks)
	if piece := a.thought.text.fresh(); piece != "" {
		delta(loop.Delta{Reasoning: piece})
	}
	a.text.add(text)
	a.text.add(refusal)
	if piece := a.text.fresh(); piece != "" {
		delta(loop.Delta{Text: piece})
	}
	calls, err := listOf(where+".tool_calls", message["tool_calls"])
	for i := 0; err == nil && i < len(calls); i++ {
		err = a.readCall(fmt.Sprintf("%s.tool_calls[%d]", where, i), calls[i])
	}
	return err
}

func (a *assembler) readCall(where string, raw json.RawMessage) error {
	call, err := objectOf(where, raw)
	if err != nil {
		return err
	}
	index, err := indexOf(where+".index", call["index"])
	if err != nil {
		return err
	}
	function := call // of servers that leave the level between out
	if isSet(call["function"]) {
		if function, err = objectOf(where+".function", call["function"]); err != nil {
			return err
		}
	}
	a.addCall(callPiece{index, textOf(call["id"]), textOf(function["name"]), writtenArguments(function["arguments"])})
	return nil
}

func (a *assembler) addCall(piece callPiece) {
	call := a.continued(piece)
	if call == nil || begins(piece, call) {
		call = &partialCall{}
		a.calls = append(a.calls, call)
	}
	if piece.index >= 0 {
		if a.byIndex == nil {
			a.byIndex = make(map[int]*partialCall)
		}
		a.byIndex[piece.index] = call
	}
	if call.id == "" {
		call.id = piece.id
	}
	if call.name == "" {
		call.name = piece.name
	}
	call.arguments.add(piece.arguments)
}

// continued finds the call that a piece may belong to: by its index, else by its id,
// else the last one. It returns nil when there is none.
func (a *assembler) continued(piece callPiece) *partialCall {
	if piece.index >= 0 {
		return a.byIndex[piece.index]
	}
	if piece.id != "" {
		for _, call := range a.calls {
			if call.id == piece.id {
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
func begins(piece callPiece, call *partialCall) bool {
	if piece.name == "" {
		return false
	}
	if piece.id != "" && call.id != "" {
		return piece.id != call.id
	}
	return piece.arguments != "" && json.Valid(call.arguments.text)
}

// reply is what has been put together, with ids that are unique. Arguments with half a character
// stay so: whoever parses them refuses them.
func (a *assembler) reply() loop.Reply {
	reply := loop.Reply{Text: a.text.String(), Usage: a.usage, Model: a.model, Reasoning: a.thought.reasoning(), Cut: endOf(a.finish) == endCut}
	taken := make(map[string]bool, len(a.calls))
	for _, partial := range a.calls {
		call := loop.ToolCall{ID: partial.id, Name: partial.name, Arguments: string(partial.arguments.text)}
		if call.Name == "" && strings.TrimSpace(call.Arguments) == "" {
			continue
		}
		if strings.TrimSpace(call.Arguments) == "" && !reply.Cut {
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
