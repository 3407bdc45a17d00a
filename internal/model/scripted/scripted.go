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
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/system/regular"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// maxDelay bounds the delay before one piece of text.
const maxDelay = time.Minute

// ErrInvalidScript is wrapped by every error about the content of a script.
var ErrInvalidScript = errors.New("invalid script")

// step is one reply, ready to be given.
type step struct {
	reply loop.Reply
	delay time.Duration   // before each piece of text
	waits []time.Duration // before each tool call
}

// fileScript is the outer form of a script. Steps are decoded one by one, so that
// an error can name its step.
type fileScript struct {
	DelayMS int               `json:"delay_ms"`
	Steps   []json.RawMessage `json:"steps"`
}

type fileStep struct {
	Text      *string           `json:"text"`
	ToolCalls []json.RawMessage `json:"tool_calls"`
	DelayMS   *int              `json:"delay_ms"`
	Usage     protocol.Usage    `json:"usage"`
	Reasoning string            `json:"reasoning"`
	Finish    string            `json:"finish"`
}

type fileToolCall struct {
	ID           string          `json:"id"`
	Name         string          `json:"name"`
	Arguments    json.RawMessage `json:"arguments"`
	ArgumentsRaw *string         `json:"arguments_raw"`
	DelayMS      int             `json:"delay_ms"`
}

// Fields that each level of a script may have, for error messages.
const (
	scriptFields   = "steps, delay_ms"
	stepFields     = "text, tool_calls, delay_ms, usage, reasoning, finish"
	toolCallFields = "id, name, delay_ms, and arguments (an object) or arguments_raw (a string)"
)

// parse reads all steps and reports every error that it finds.
func parse(data []byte) ([]step, error) {
	var script fileScript
	if err := strictDecode(data, &script, scriptFields); err != nil {
		return nil, err
	}
	delay, err := delayOf(script.DelayMS)
	errs := []error{err}
	if len(script.Steps) == 0 {
		errs = append(errs, errors.New(`"steps": needs one step or more`))
	}
	steps := make([]step, len(script.Steps))
	for i, raw := range script.Steps {
		steps[i], err = parseStep(i+1, raw, delay)
		if err != nil {
			errs = append(errs, fmt.Errorf("step %d: %w", i+1, err))
		}
	}
	return steps, errors.Join(errs...)
}

func parseStep(number int, raw json.RawMessage, delay time.Duration) (step, error) {
	var file fileStep
	if err := strictDecode(raw, &file, stepFields); err != nil {
		return step{}, err
	}
	if file.Text == nil && len(file.ToolCalls) == 0 {
		return step{}, fmt.Errorf("has neither text nor tool_calls; allowed are %s", stepFields)
	}
	if file.Usage.InputTokens < 0 || file.Usage.OutputTokens < 0 {
		return step{}, errors.New("usage: must not be negative")
	}
	if file.DelayMS != nil {
		var err error
		if delay, err = delayOf(*file.DelayMS); err != nil {
			return step{}, err
		}
	}
	if file.Finish != "" && file.Finish != loop.FinishLength {
		return step{}, fmt.Errorf(`"finish": %q, must be %q or missing`, file.Finish, loop.FinishLength)
	}
	s := step{delay: delay, reply: loop.Reply{Usage: file.Usage, Cut: file.Finish != ""}}
	if file.Reasoning != "" {
		s.reply.Reasoning = &loop.Reasoning{Text: file.Reasoning}
	}
	if file.Text != nil {
		s.reply.Text = *file.Text
	}
	var err error
	s.reply.ToolCalls, s.waits, err = parseToolCalls(number, file.ToolCalls)
	return s, err
}

func parseToolCalls(stepNumber int, raws []json.RawMessage) (calls []loop.ToolCall, waits []time.Duration, err error) {
	var errs []error
	seen := make(map[string]int, len(raws))
	for i, raw := range raws {
		call, wait, err := parseToolCall(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("tool call %d: %w", i+1, err))
			continue
		}
		if call.ID == "" {
			call.ID = fmt.Sprintf("step%d_call%d", stepNumber, i+1)
		}
		if first, taken := seen[call.ID]; taken {
			errs = append(errs, fmt.Errorf("tool call %d: id %q is the id of tool call %d too; ids must differ within a step", i+1, call.ID, first))
			continue
		}
		seen[call.ID] = i + 1
		calls, waits = append(calls, call), append(waits, wait)
	}
	return calls, waits, errors.Join(errs...)
}

func parseToolCall(raw json.RawMessage) (loop.ToolCall, time.Duration, error) {
	var file fileToolCall
	if err := strictDecode(raw, &file, toolCallFields); err != nil {
		return loop.ToolCall{}, 0, err
	}
	if file.Name == "" {
		return loop.ToolCall{}, 0, fmt.Errorf(`"name": missing; allowed are %s`, toolCallFields)
	}
	call := loop.ToolCall{ID: file.ID, Name: file.Name, Arguments: "{}"}
	switch {
	case file.Arguments != nil && file.ArgumentsRaw != nil:
		return loop.ToolCall{}, 0, errors.New(`has both "arguments" and "arguments_raw"; allowed is one of them`)
	case file.ArgumentsRaw != nil:
		call.Arguments = *file.ArgumentsRaw
	case file.Arguments != nil:
		if file.Arguments[0] != '{' {
			return loop.ToolCall{}, 0, errors.New(`"arguments": must be an object; to send anything else, write it as a string in "arguments_raw"`)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, file.Arguments); err != nil {
			return loop.ToolCall{}, 0, err
		}
		call.Arguments = compact.String()
	}
	wait, err := delayOf(file.DelayMS)
	return call, wait, err
}

func delayOf(millis int) (time.Duration, error) {
	if millis < 0 || millis > int(maxDelay.Milliseconds()) {
		return 0, fmt.Errorf(`"delay_ms": %d, must be 0 to %d`, millis, maxDelay.Milliseconds())
	}
	return time.Duration(millis) * time.Millisecond, nil
}

// strictDecode decodes exactly one JSON value without unknown fields; allowed
// names the fields in its errors.
func strictDecode(data []byte, into any, allowed string) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return explain(err, data, allowed)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: unexpected text behind the closing brace", position(data, decoder.InputOffset()))
	}
	return nil
}

// explain turns an error of encoding/json into an error that helps to mend the script.
func explain(err error, data []byte, allowed string) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("not JSON: it ends too early")
	case errors.As(err, &syntax):
		return fmt.Errorf("not JSON: %s: %w", position(data, syntax.Offset), err)
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("is a JSON %s, must be an object with %s", kind.Value, allowed)
	case errors.As(err, &kind):
		return fmt.Errorf("%q: is a JSON %s, which is not allowed there; allowed are %s", kind.Field, kind.Value, allowed)
	default: // an unknown field
		return fmt.Errorf("%s; allowed are %s", strings.TrimPrefix(err.Error(), "json: "), allowed)
	}
}

func position(data []byte, offset int64) string {
	before := data[:min(offset, int64(len(data)))]
	line := bytes.Count(before, []byte("\n")) + 1
	column := len(before) - bytes.LastIndexByte(before, '\n') - 1
	return fmt.Sprintf("line %d, column %d", line, max(column, 1))
}
