package session

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// journaled appends a session's life: turns that ended so, and one that is open for "".
func journaled(t *testing.T, f *fleet.Fleet, id protocol.SessionID, at time.Time, outcomes ...loop.Outcome) {
	t.Helper()
	events := []loop.Event{{Type: loop.EventSessionStarted, Time: at, StartFields: loop.StartFields{Model: "script", Workspace: "/home/ada/x"}}}
	for i, outcome := range outcomes {
		turn := i + 1
		events = append(events, loop.Event{Type: loop.EventTurnStarted, Time: at, Turn: turn, StartFields: loop.StartFields{Input: fmt.Sprintf("do %d", turn)}})
		for step := range turn {
			events = append(events, loop.Event{
				Type: loop.EventModelReply, Time: at, Turn: turn, Step: step + 1,
				ReplyFields: loop.ReplyFields{Usage: &protocol.Usage{InputTokens: 10, OutputTokens: 1}, ToolCalls: []loop.ToolCall{{ID: fmt.Sprint(turn, step), Name: "noop"}, {ID: fmt.Sprint(turn, step, "b"), Name: "noop"}}},
			})
		}
		if outcome != "" {
			events = append(events, loop.Event{Type: loop.EventTurnEnded, Time: at, Turn: turn, Status: string(outcome)})
		}
	}
	_, err := f.Journal.Append(t.Context(), id, 0, events...)
	require.NoError(t, err)
}

func (r *rig) reader(t *testing.T) *Reader {
	t.Helper()
	reader, err := NewReader(t.Context(), r.Fleet)
	require.NoError(t, err)
	return reader
}

func TestReader_ShowsWhatThereIs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "lived")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	journaled(t, r.Fleet, "s", at, loop.OutcomeAnswered, loop.OutcomeFailed, "")
	reader := r.reader(t)
	info, err := reader.Show(t.Context(), "s")
	require.NoError(t, err)
	require.Positive(t, info.JournalBytes)
	info.JournalBytes = 0
	require.Equal(t, &report.Session{
		SessionID: "s", State: report.StateOpen, Prompt: "do 1", Model: "script", Workspace: "/home/ada/x",
		CreatedAt: &at, UpdatedAt: at, Turns: 3, Steps: 6, ToolCalls: 12, Usage: protocol.Usage{InputTokens: 60, OutputTokens: 6}, Messages: 1,
		History: []report.Turn{
			{Turn: 1, State: "answered", StartedAt: at, Steps: 1, ToolCalls: 2, Input: "do 1"},
			{Turn: 2, State: "failed", StartedAt: at, Steps: 2, ToolCalls: 4, Input: "do 2"},
			{Turn: 3, State: report.StateOpen, StartedAt: at, Steps: 3, ToolCalls: 6, Input: "do 3"},
		},
	}, info)
	info, err = reader.Show(t.Context(), "lived")
	require.NoError(t, err)
	require.EqualValues(t, 4, info.Results)
	require.Equal(t, 5, info.Bodies, "an output with its two streams, a file, and the result that is a link to it")
	require.GreaterOrEqual(t, info.BodyBytes, uint64(600_000))
	_, err = reader.Show(t.Context(), "nobody")
	require.ErrorIs(t, err, ErrNone)
	_, err = NewReader(t.Context(), &fleet.Fleet{Name: "other", JS: r.JS})
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound)
}

func TestReader_ListsTheLastChangedFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reader := r.reader(t)
	list, leftOut, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Zero(t, leftOut)
	for i, id := range []protocol.SessionID{"c", "a", "b"} {
		journaled(t, r.Fleet, id, time.Unix(int64(i), 0).UTC(), loop.OutcomeAnswered)
	}
	list, leftOut, err = reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1, leftOut)
	require.Equal(t, []protocol.SessionID{"b", "a"}, []protocol.SessionID{list[0].SessionID, list[1].SessionID})
	require.Equal(t, "answered", list[0].State)
	require.Equal(t, 1, list[0].Steps)
	require.Empty(t, list[0].History)
}

// When sessions changed is asked for many of them at once.
func TestReader_ListsManySessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	at := time.Unix(1, 0).UTC()
	for i := range 1500 {
		for _, event := range []loop.EventType{loop.EventSessionStarted, loop.EventTurnStarted} { // one of a single message is read
			body, err := json.Marshal([]loop.Event{{Type: event, Time: at}})
			require.NoError(t, err)
			_, err = r.JS.Publish(t.Context(), wire.EventSubject(r.Name, protocol.SessionID(fmt.Sprintf("s%d", 5000-i))), body)
			require.NoError(t, err)
		}
	}
	for i := range 3 {
		_, err := Remove(t.Context(), r.Fleet, protocol.SessionID(fmt.Sprintf("removed-%d", i)), Options{})
		require.NoError(t, err)
	}
	reader := r.reader(t)
	messages := func() uint64 { s := r.NC.Stats(); return s.InMsgs + s.OutMsgs }
	before := messages()
	list, leftOut, err := reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1498, leftOut)
	require.Equal(t, []protocol.SessionID{"s3501", "s3502"}, []protocol.SessionID{list[0].SessionID, list[1].SessionID})
	require.Less(t, messages()-before, uint64(150), "not one for each session of the fleet")

	for i := range 60 {
		last := uint64(0)
		for n := range 4 {
			last, err = r.Journal.Append(t.Context(), protocol.SessionID(fmt.Sprintf("t%d", i)), last, loop.Event{Type: loop.EventTurnStarted, Time: at, Turn: n + 1})
			require.NoError(t, err)
		}
	}
	before = messages()
	list, _, err = reader.List(t.Context(), 50)
	require.NoError(t, err)
	require.Len(t, list, 50)
	for i, info := range list {
		require.Equal(t, protocol.SessionID(fmt.Sprintf("t%d", 59-i)), info.SessionID)
		require.Equal(t, 4, info.Turns)
		require.EqualValues(t, 4, info.Messages)
	}
	require.Less(t, messages()-before, uint64(50*7+16*50+100), "its events and two more of each session, and the tail")
}

// Calls that wait are found without a message for each session.
func TestReader_ApprovalsOfManySessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		asked := loop.Event{Type: loop.EventApprovalAsked, Time: time.Unix(int64(i), 0).UTC()}
		asked.CallID = protocol.CallID(fmt.Sprint("c", i))
		body, err := json.Marshal([]loop.Event{{Type: loop.EventTurnStarted, Turn: 1}, asked})
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.EventSubject(r.Name, protocol.SessionID(fmt.Sprint("s", i))), body)
		require.NoError(t, err)
	}
	reader, before := r.reader(t), r.NC.Stats()
	all, err := reader.Approvals(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 300)
	require.Equal(t, protocol.CallID("c7"), all[7].CallID, "the oldest first")
	require.Less(t, r.NC.Stats().OutMsgs-before.OutMsgs, uint64(50))
}

// A journal that cannot be read hides no other session, and can be removed.
func TestReader_AJournalThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	journaled(t, r.Fleet, "broken", time.Unix(1, 0).UTC(), loop.OutcomeAnswered)
	journaled(t, r.Fleet, "s", time.Unix(2, 0).UTC(), loop.OutcomeAnswered)
	_, err := r.JS.Publish(t.Context(), wire.EventSubject(r.Name, "broken"), []byte(`{"from":"tomorrow"}`))
	require.NoError(t, err)
	list, _, err := r.reader(t).List(t.Context(), 10)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, report.StateInvalid, list[0].State)
	require.Equal(t, "answered", list[1].State)
	_, err = Remove(t.Context(), r.Fleet, "broken", Options{})
	require.ErrorIs(t, err, ErrBusy)
	_, err = Remove(t.Context(), r.Fleet, "broken", Options{Force: true})
	require.NoError(t, err)
	require.Empty(t, r.left(t, "broken"))
}
