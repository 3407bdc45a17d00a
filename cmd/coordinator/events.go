package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/toolfleet/toolfleet/pkg/loop"
)

// jsonEvents prints the events of a session, one JSON object a line.
type jsonEvents struct {
	w      io.Writer
	failed error // the first time that an event could not be printed
}

func newJSONEvents(w io.Writer) *jsonEvents { return &jsonEvents{w: w} }

// observe prints an event if it is part of the contract; live news are not.
func (j *jsonEvents) observe(e loop.Event) {
	always, printed := alwaysThere(e.Type)
	if !printed {
		return
	}
	line, err := encodeEvent(e, always)
	if err != nil {
		panic(fmt.Sprintf("encode event: %v", err)) // strings and numbers always encode
	}
	if _, err := j.w.Write(line); err != nil && j.failed == nil { // a reader that went away does not end the session
		j.failed = fmt.Errorf("print events: %w", err)
	}
}

// field is a field that scripts may rely on, and its value when the event has none.
type field struct {
	name  string
	empty string
}

// alwaysThere returns the fields that an event of a type always has beside type and
// session_id; printed is false for events that are not part of the contract.
func alwaysThere(t loop.EventType) (fields []field, printed bool) {
	switch t {
	case loop.EventSessionStarted:
		return []field{{"model", `""`}, {"tools", `[]`}}, true
	case loop.EventModelReply:
		return []field{{"text", `""`}, {"tool_calls", `[]`}}, true
	case loop.EventToolCall:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"arguments", `""`}}, true
	case loop.EventToolResult:
		return []field{
			{"index", `0`},
			{"call_id", `""`},
			{"name", `""`},
			{"status", `""`},
			{"content", `""`},
			{"worker_id", `""`},
			{"attempt", `0`},
			{"queue_ms", `0`},
			{"run_ms", `0`},
		}, true
	case loop.EventSessionEnded:
		return []field{{"status", `""`}, {"text", `""`}, {"usage", `{"input_tokens":0,"output_tokens":0}`}}, true
	case loop.EventJobEnded:
		return []field{{"job", `""`}, {"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"status", `""`}, {"content", `""`}}, true
	case loop.EventPartLeftOut:
		return []field{{"tool_call_id", `""`}, {"part", `""`}, {"text", `""`}}, true
	case loop.EventPolicyDecision:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"status", `""`}, {"rule", `""`}, {"text", `""`}}, true
	case loop.EventApprovalAsked:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"rule", `""`}, {"text", `""`}}, true
	case loop.EventQuestionAsked:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"lane", `""`}, {"question", `{}`}}, true
	case loop.EventAnswered:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"question", `{}`}, {"status", `""`}}, true
	case loop.EventWorkerLost:
		return []field{{"index", `0`}, {"call_id", `""`}, {"name", `""`}, {"worker_id", `""`}, {"attempt", `0`}, {"text", `""`}}, true
	case loop.EventSessionForked, loop.EventTurnStarted, loop.EventTurnEnded, loop.EventTextDelta, loop.EventReasoningDelta, loop.EventToolQueued, loop.EventToolRunning:
	}
	return nil, false
}

// encodeEvent returns the line of an event.
func encodeEvent(e loop.Event, always []field) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if e.Reasoning != nil { // what its adapter needs is nobody else's
		e.Reasoning = &loop.Reasoning{Text: e.Reasoning.Text}
	}
	if err := encoder.Encode(e); err != nil {
		return nil, err
	}
	var has map[string]json.RawMessage
	if err := json.Unmarshal(line.Bytes(), &has); err != nil {
		return nil, err
	}
	line.Truncate(line.Len() - len("}\n"))
	for _, f := range always {
		if _, there := has[f.name]; !there {
			fmt.Fprintf(&line, ",%q:%s", f.name, f.empty)
		}
	}
	line.WriteString("}\n")
	return line.Bytes(), nil
}
