package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestJSONEvents_FieldsOfTheContractAreAlwaysThere(t *testing.T) {
	t.Parallel()
	want := map[loop.EventType][]string{
		loop.EventSessionStarted: {"model", "tools"},
		loop.EventModelReply:     {"text", "tool_calls", "step"},
		loop.EventToolCall:       {"call_id", "name", "arguments", "step", "index"},
		loop.EventToolResult:     {"step", "index", "call_id", "name", "status", "content", "worker_id", "attempt", "queue_ms", "run_ms"},
		loop.EventSessionEnded:   {"status", "text", "usage"},
	}
	for eventType, fields := range want {
		var out strings.Builder
		newJSONEvents(&out).observe(loop.Event{Type: eventType, SessionID: "s", Step: 1})
		require.Equal(t, 1, strings.Count(out.String(), "\n"))
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(out.String()), &line))
		for _, field := range append(fields, "type", "session_id") {
			require.Contains(t, line, field, eventType)
		}
	}
}

func TestJSONEvents_ReasoningIsThatForPeople(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	newJSONEvents(&out).observe(loop.Event{
		Type: loop.EventModelReply, Reasoning: &loop.Reasoning{Text: "hm", Opaque: []byte(`{"x":1}`)}, Finish: loop.FinishLength,
	})
	require.Contains(t, out.String(), `"reasoning":{"text":"hm"}`)
	require.Contains(t, out.String(), `"finish":"length"`)
}

func TestJSONEvents_ValuesStayAndLiveNewsAreLeftOut(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	events := newJSONEvents(&out)
	events.observe(loop.Event{Type: loop.EventTextDelta, Text: "x"})
	events.observe(loop.Event{Type: loop.EventTurnStarted})
	require.Empty(t, out.String())
	queue := 1.5
	events.observe(loop.Event{
		Type: loop.EventToolResult, SessionID: "s", Time: time.Unix(0, 0).UTC(), Content: "<a> & b", Status: string(protocol.StatusOK), QueueMS: &queue,
	})
	require.Contains(t, out.String(), `"content":"<a> & b"`)
	require.Contains(t, out.String(), `"queue_ms":1.5`)
	require.Equal(t, 1, strings.Count(out.String(), "queue_ms"))
}
