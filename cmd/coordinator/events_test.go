package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// documented are the fields of an event in docs/cli.md, and whether they are always there.
func documented(t *testing.T) map[string]map[string]bool {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "cli.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## `run --json`")
	section, _, _ = strings.Cut(section, "\n## ")
	call := regexp.MustCompile(`(?s)\*call\* stands for (.*?)\.\n`).FindStringSubmatch(section)
	require.NotNil(t, call)
	section = strings.ReplaceAll(section, "*call*", strings.ReplaceAll(call[1], "\n", " "))
	aside := regexp.MustCompile(`\[[^]]*\]\([^)]*\)|\([^()]*\)|[:;] .*`)
	name := regexp.MustCompile("(\\*\\*)?`([a-z_]+)`")
	events := map[string]map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (.*) \\|$").FindAllStringSubmatch(section, -1) {
		fields := map[string]bool{"type": true, "session_id": true, "time": true}
		text := row[2]
		for range 2 { // links stand in brackets, too
			text = aside.ReplaceAllString(text, "")
		}
		for _, field := range name.FindAllStringSubmatch(text, -1) {
			fields[field[2]] = field[1] != ""
		}
		events[row[1]] = fields
	}
	for field := range events["tool_result"] { // which job_ended has as well
		required := events["job_ended"][field]
		events["job_ended"][field] = required
	}
	require.Len(t, events, 24)
	return events
}

// requireDocumented checks that a line has what the documents promise, and nothing else.
func requireDocumented(t *testing.T, line string, events map[string]map[string]bool) (event map[string]any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(line), &event), line)
	kind, _ := event["type"].(string)
	require.Contains(t, events, kind)
	for field, always := range events[kind] {
		require.True(t, !always || event[field] != nil, "%s is missing in %s", field, line)
	}
	for field := range event {
		require.Contains(t, events[kind], field, line)
	}
	return event
}

func TestJSONEvents_FieldsOfTheContractAreAlwaysThere(t *testing.T) {
	t.Parallel()
	events := documented(t)
	for kind := range events {
		if _, printed := alwaysThere(loop.EventType(kind)); !printed {
			continue // not of the session loop
		}
		step := 1
		if kind == string(loop.EventSessionStarted) || kind == string(loop.EventSessionEnded) || kind == string(loop.EventTurnPostponed) || kind == string(loop.EventRewound) {
			step = 0
		}
		var out strings.Builder
		newJSONEvents(&out).observe(loop.Event{Type: loop.EventType(kind), SessionID: "s", Step: step})
		require.Equal(t, 1, strings.Count(out.String(), "\n"))
		requireDocumented(t, out.String(), events)
	}
}

func TestJSONEvents_ReasoningIsThatForPeople(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	newJSONEvents(&out).observe(loop.Event{
		Type: loop.EventModelReply, ReplyFields: loop.ReplyFields{Reasoning: &loop.Reasoning{Text: "hm", Opaque: []byte(`{"x":1}`)}, Finish: "length"},
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
		Type: loop.EventToolResult, SessionID: "s", Time: time.Unix(0, 0).UTC(),
		ResultFields: loop.ResultFields{Content: "<a> & b", QueueMS: &queue}, Status: string(protocol.StatusOK),
	})
	require.Contains(t, out.String(), `"content":"<a> & b"`)
	require.Contains(t, out.String(), `"queue_ms":1.5`)
	require.Equal(t, 1, strings.Count(out.String(), "queue_ms"))
}

// A call that started while its reply was streaming is shown behind the sentence that announces it.
func TestBehindReplies(t *testing.T) {
	t.Parallel()
	event := func(kind loop.EventType, turn, step int) loop.Event {
		return loop.Event{Type: kind, Turn: turn, Step: step}
	}
	started, result := event(loop.EventTurnStarted, 1, 0), event(loop.EventToolResult, 1, 1)
	reply, call := event(loop.EventModelReply, 1, 1), event(loop.EventToolCall, 1, 1)
	second, late, open := event(loop.EventModelReply, 1, 2), event(loop.EventToolCall, 1, 2), event(loop.EventToolCall, 1, 3)
	require.Equal(t, []loop.Event{started, reply, call, call, result, second, late, open},
		behindReplies([]loop.Event{started, call, reply, call, result, second, late, open}))
}

// Whichever of a turn's last events are lost, its answer is shown, and once.
func TestLiveTurn_TheAnswerIsShown(t *testing.T) {
	t.Parallel()
	all := []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1, StartFields: loop.StartFields{Input: "go"}},
		{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: "The answer "},
		{Type: loop.EventTextDelta, Turn: 1, Step: 1, Text: "is 42."},
		{Type: loop.EventModelReply, Turn: 1, Step: 1, Text: "The answer is 42."},
		{Type: loop.EventTurnEnded, Turn: 1, Step: 1, Text: "The answer is 42.", Status: "answered"},
	}
	for heard := range len(all) + 1 {
		var out bytes.Buffer
		live := &liveTurn{show: terminal.New(&out, nil).Observe}
		for _, e := range all[:heard] {
			live.observe(e)
		}
		live.complete(loop.TurnResult{Turn: 1, Outcome: loop.OutcomeAnswered, Text: "The answer is 42.", Steps: 1})
		require.Equal(t, 1, strings.Count(out.String(), "The answer is 42."), "%d events were heard: %s", heard, out.String())
	}
}
