// Package scripted is a model that replies from a script: real sessions with real tools, and no
// model provider.
//
// A script is a JSON file:
//
//	{
//	  "delay_ms": 20,
//	  "steps": [
//	    {"text": "Let me look.", "tool_calls": [
//	      {"id": "c1", "name": "bash", "arguments": {"command": "ls"}},
//	      {"id": "c2", "name": "read", "arguments_raw": "{"}
//	    ]},
//	    {"reasoning": "It worked.", "text": "Done.", "usage": {"input_tokens": 12, "output_tokens": 3}}
//	  ]
//	}
//
// A step needs text or tool_calls. delay_ms is the time before each word of the text, of all steps
// or of one: 0 to 60000, default 0. usage is the reported usage of the reply; default none.
// reasoning is the model's reasoning, and "finish": "length" cuts the reply off at a limit of
// output tokens. arguments_raw sends a string as it is, arguments an object; without both it is {}.
// In either, {{ID PATTERN}} is replaced by the first match of the regular expression in the last
// result of tool call ID, such as the handle of a process: "{{c1 p-[0-9a-f]+}}". delay_ms of a tool
// call is the time before it; the calls of such a step are passed on one by one, as those of a
// reply that streams.
//
// The model has no state: it replies with the step after as many steps as the conversation has
// assistant messages. So a resumed session continues where it was, several sessions may share one
// model, and a second turn begins after the last step of the first. A conversation that is longer
// than the script is an [EndError].
//
// Reading a script reports all of its errors at once.
package scripted

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/internal/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
)

// Model replies from a script. It is immutable, and so safe for concurrent use.
type Model struct {
	name  string
	steps []step
}

var _ loop.Model = (*Model)(nil)

// maxScript bounds a script, in bytes.
const maxScript = 64 << 20

// Load reads a script from a file. Errors name the file; those about its content wrap
// [ErrInvalidScript].
func Load(path string) (*Model, error) {
	data, err := regular.Read(path, maxScript)
	if err != nil {
		return nil, fmt.Errorf("load script: %w", err)
	}
	return Parse(path, data)
}

// Parse reads a script. The name stands for it in errors, usually its path. The error reports
// every error of the script and wraps [ErrInvalidScript].
func Parse(name string, data []byte) (*Model, error) {
	steps, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrInvalidScript, name, err)
	}
	return &Model{name: name, steps: steps}, nil
}

// Reply implements [loop.Model]. It gives step n+1 to a conversation with n
// replies, its text a word at a time with the step's delay before each.
// Behind the last step it returns an [*EndError].
func (m *Model) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	done := 0
	for _, message := range req.Messages {
		if message.Role == loop.RoleAssistant {
			done++
		}
	}
	done = max(done, req.Replies) // a summary may stand for the first ones
	if done >= len(m.steps) {
		return loop.Reply{}, &EndError{Script: m.name, Steps: len(m.steps), Asked: done + 1}
	}
	current := m.steps[done]
	if thought := current.reply.Reasoning; thought != nil {
		delta(loop.Delta{Reasoning: thought.Text})
	}
	for piece := range words(current.reply.Text) {
		if !pause.For(ctx, current.delay) {
			return loop.Reply{}, fmt.Errorf("reply from script %s: step %d: %w", m.name, done+1, context.Cause(ctx))
		}
		delta(loop.Delta{Text: piece})
	}
	reply := current.reply
	reply.Model, reply.Scripted = "script", true
	reply.ToolCalls = slices.Clone(reply.ToolCalls)
	for i := range reply.ToolCalls {
		reply.ToolCalls[i].Arguments = filled(reply.ToolCalls[i].Arguments, req.Messages)
	}
	streams := slices.ContainsFunc(current.waits, func(wait time.Duration) bool { return wait > 0 })
	for i := 0; streams && i < len(reply.ToolCalls) && pause.For(ctx, current.waits[i]); i++ {
		delta(loop.Delta{Call: new(reply.ToolCalls[i]), Index: i})
	}
	if ctx.Err() != nil {
		return loop.Reply{}, fmt.Errorf("reply from script %s: step %d: %w", m.name, done+1, context.Cause(ctx))
	}
	if thought := reply.Reasoning; thought != nil {
		reply.Reasoning = &loop.Reasoning{Text: thought.Text}
	}
	return reply, nil
}

// reference is a part of arguments that a result stands in for.
var reference = regexp.MustCompile(`\{\{(\S+) (.+?)\}\}`)

// filled returns arguments with what references find in the conversation; one that finds nothing,
// or is no pattern, stays as it is.
func filled(arguments string, conversation []loop.Message) string {
	return reference.ReplaceAllStringFunc(arguments, func(whole string) string {
		parts := reference.FindStringSubmatch(whole)
		pattern, err := regexp.Compile(parts[2])
		if err != nil {
			return whole
		}
		for _, message := range slices.Backward(conversation) {
			if message.Role == loop.RoleTool && message.ToolCallID == parts[1] {
				return cmp.Or(pattern.FindString(message.Text), whole)
			}
		}
		return whole
	})
}

// EndError says that a conversation went on behind the last step of its script.
type EndError struct {
	Script string // name of the script
	Steps  int    // how many steps it has
	Asked  int    // which step was asked for, from 1
}

// Error names the script and what to add to it.
func (e *EndError) Error() string {
	return fmt.Sprintf("script %s has %d steps and step %d was asked for: the session went on after the last one; "+
		"end the script with a step without tool_calls, or add steps", e.Script, e.Steps, e.Asked)
}

// ErrorType is the error's low-cardinality name.
func (e *EndError) ErrorType() string { return "script_ended" }

// words yields the pieces of text, each a word with the white space behind it.
// Together they are the text.
func words(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			space := strings.IndexFunc(text, unicode.IsSpace)
			if space < 0 {
				yield(text)
				return
			}
			length := strings.IndexFunc(text[space:], func(r rune) bool { return !unicode.IsSpace(r) })
			if length < 0 {
				yield(text)
				return
			}
			if !yield(text[:space+length]) {
				return
			}
			text = text[space+length:]
		}
	}
}
