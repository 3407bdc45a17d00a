package scripted

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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

// explain turns an error of encoding/json into one that helps to mend the script.
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
