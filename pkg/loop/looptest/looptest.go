// Package looptest tests the ports of package loop: [RunJournal] is what every
// [loop.Journal] must pass, and [Journal] is one in memory that does.
package looptest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var _ loop.Journal = (*Journal)(nil)

// Journal keeps sessions in memory, as JSON, so that events are encoded and decoded as stored ones
// are. The zero value is empty and ready. It is safe for concurrent use and grows without bound.
type Journal struct {
	mu       sync.Mutex
	last     uint64
	sessions map[protocol.SessionID]*stored
}

type stored struct {
	events []json.RawMessage
	last   uint64
}

// Load implements [loop.Journal].
func (j *Journal) Load(ctx context.Context, session protocol.SessionID) (loop.History, error) {
	if err := ctx.Err(); err != nil {
		return loop.History{}, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, ok := j.sessions[session]
	if !ok {
		return loop.History{}, nil
	}
	history := loop.History{Events: make([]loop.Event, len(kept.events)), Last: kept.last}
	for i := range kept.events {
		if err := json.Unmarshal(kept.events[i], &history.Events[i]); err != nil {
			return loop.History{}, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	return history, nil
}

// Append implements [loop.Journal].
func (j *Journal) Append(
	ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event,
) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	encoded := make([]json.RawMessage, len(events))
	for i := range events {
		var err error
		if encoded[i], err = json.Marshal(events[i]); err != nil {
			return 0, fmt.Errorf("event %d: %w", i+1, err)
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	kept, ok := j.sessions[session]
	if !ok {
		kept = &stored{}
	}
	if kept.last != expected {
		return 0, fmt.Errorf("session %s is at %d, not at %d: %w", session, kept.last, expected, loop.ErrJournalConflict)
	}
	if len(events) == 0 {
		return expected, nil
	}
	if j.sessions == nil {
		j.sessions = make(map[protocol.SessionID]*stored)
	}
	j.last += uint64(len(events))
	kept.events, kept.last = append(kept.events, encoded...), j.last
	j.sessions[session] = kept
	return kept.last, nil
}

// RunJournal checks that a journal keeps the contract of [loop.Journal]. newJournal is
// called once per test and returns an empty journal that lives as long as its t.
func RunJournal(t *testing.T, newJournal func(t *testing.T) loop.Journal) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, j loop.Journal)
	}{
		{"a new session is empty", newSessionIsEmpty},
		{"events come back whole and in order", eventsComeBack},
		{"appending nothing changes nothing", appendingNothing},
		{"a stale sequence is refused and stores nothing", staleIsRefused},
		{"a sequence from the future is refused", futureIsRefused},
		{"sessions do not see each other", sessionsAreApart},
		{"more than a thousand events", manyEvents},
		{"an event of 500 KB", bigEvent},
		{"of concurrent appends exactly one wins", oneAppendWins},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newJournal(t))
		})
	}
}

// numbered returns count events of a session that differ in their text.
func numbered(session protocol.SessionID, from, count int) []loop.Event {
	events := make([]loop.Event, count)
	for i := range events {
		events[i] = loop.Event{
			Type: loop.EventToolResult, SessionID: session, Time: time.Unix(1_700_000_000, int64(from+i)).UTC(),
			Turn: 1, Step: 1, CallFields: loop.CallFields{Index: from + i}, ResultFields: loop.ResultFields{Content: strconv.Itoa(from + i)},
		}
	}
	return events
}

func load(t *testing.T, j loop.Journal, session protocol.SessionID) loop.History {
	t.Helper()
	history, err := j.Load(t.Context(), session)
	require.NoError(t, err)
	return history
}

func add(t *testing.T, j loop.Journal, session protocol.SessionID, expected uint64, events ...loop.Event) uint64 {
	t.Helper()
	last, err := j.Append(t.Context(), session, expected, events...)
	require.NoError(t, err)
	return last
}

func newSessionIsEmpty(t *testing.T, j loop.Journal) {
	t.Helper()
	history := load(t, j, protocol.NewSessionID())
	require.Empty(t, history.Events)
	require.Zero(t, history.Last)
}

func eventsComeBack(t *testing.T, j loop.Journal) {
	t.Helper()
	session := protocol.NewSessionID()
	milliseconds := 1.5
	first := loop.Event{
		Type: loop.EventModelReply, SessionID: session, Time: time.Unix(1_700_000_000, 123_456_789).UTC(),
		Turn: 1, Step: 2, Text: "text with \"quotes\", \n and \u2603",
		ReplyFields: loop.ReplyFields{
			ToolCalls: []loop.ToolCall{{ID: "c1", Name: "bash", Arguments: `{"command":"true"}`}, {ID: "c2", Arguments: "{"}},
			Usage:     &protocol.Usage{InputTokens: 7, OutputTokens: 9},
		},
	}
	second := loop.Event{
		Type: loop.EventToolResult, SessionID: session, Time: first.Time.Add(time.Second), Turn: 1, Step: 2,
		CallFields: loop.CallFields{Index: 1, CallID: wire.NewCallID(session, "", 1, 2, 1), ToolCallID: "c2", Name: "bash"},
		Status:     string(protocol.StatusRejected), ResultFields: loop.ResultFields{
			Content: "no", Error: protocol.Errorf(protocol.CodeInvalidArguments, "no"), WorkerID: "w-1",
			Attempt: 2, QueueMS: &milliseconds, RunMS: &milliseconds, Diff: "-a\n+b\n",
		},
	}
	third := loop.Event{
		Type: loop.EventTurnEnded, SessionID: session, Time: second.Time.Add(time.Second),
		Turn: 1, Step: 2, Status: string(loop.OutcomeAnswered),
	}
	last := add(t, j, session, 0, first)
	require.NotZero(t, last)
	last = add(t, j, session, last, second, third)
	history := load(t, j, session)
	require.Equal(t, []loop.Event{first, second, third}, history.Events)
	require.Equal(t, last, history.Last)
	add(t, j, session, history.Last, numbered(session, 0, 1)...)
	require.Len(t, load(t, j, session).Events, 4)
}

func appendingNothing(t *testing.T, j loop.Journal) {
	t.Helper()
	session := protocol.NewSessionID()
	require.Zero(t, add(t, j, session, 0))
	last := add(t, j, session, 0, numbered(session, 0, 2)...)
	require.Equal(t, last, add(t, j, session, last))
	require.Len(t, load(t, j, session).Events, 2)
}

func staleIsRefused(t *testing.T, j loop.Journal) {
	t.Helper()
	session := protocol.NewSessionID()
	first := add(t, j, session, 0, numbered(session, 0, 1)...)
	last := add(t, j, session, first, numbered(session, 1, 1)...)
	for _, stale := range []uint64{0, first} {
		_, err := j.Append(t.Context(), session, stale, numbered(session, 2, 3)...)
		require.ErrorIs(t, err, loop.ErrJournalConflict)
	}
	history := load(t, j, session)
	require.Equal(t, numbered(session, 0, 2), history.Events)
	require.Equal(t, last, history.Last)
}

func futureIsRefused(t *testing.T, j loop.Journal) {
	t.Helper()
	session := protocol.NewSessionID()
	last := add(t, j, session, 0, numbered(session, 0, 1)...)
	_, err := j.Append(t.Context(), session, last+1, numbered(session, 1, 1)...)
	require.ErrorIs(t, err, loop.ErrJournalConflict)
	require.Len(t, load(t, j, session).Events, 1)
}

func sessionsAreApart(t *testing.T, j loop.Journal) {
	t.Helper()
	sessions := []protocol.SessionID{protocol.NewSessionID(), protocol.NewSessionID(), "my_own-Name"}
	last := make([]uint64, len(sessions))
	for round := range 3 {
		for i, session := range sessions {
			last[i] = add(t, j, session, last[i], numbered(session, round, 1)...)
		}
	}
	for i, session := range sessions {
		history := load(t, j, session)
		require.Equal(t, numbered(session, 0, 3), history.Events)
		require.Equal(t, last[i], history.Last)
	}
}

func manyEvents(t *testing.T, j loop.Journal) {
	t.Helper()
	const batches, size = 25, 50
	session := protocol.NewSessionID()
	var last uint64
	for batch := range batches {
		last = add(t, j, session, last, numbered(session, batch*size, size)...)
	}
	history := load(t, j, session)
	require.Equal(t, numbered(session, 0, batches*size), history.Events)
	require.Equal(t, last, history.Last)
}

func bigEvent(t *testing.T, j loop.Journal) {
	t.Helper()
	session := protocol.NewSessionID()
	events := numbered(session, 0, 3)
	events[1].Content = strings.Repeat("0123456789", 50_000)
	add(t, j, session, 0, events...)
	require.Equal(t, events, load(t, j, session).Events)
}

func oneAppendWins(t *testing.T, j loop.Journal) {
	t.Helper()
	const appenders = 8
	session := protocol.NewSessionID()
	var last uint64
	for round := range 5 {
		errs := make([]error, appenders)
		var all sync.WaitGroup
		for i := range appenders {
			all.Go(func() {
				_, errs[i] = j.Append(t.Context(), session, last, numbered(session, i, 2)...)
			})
		}
		all.Wait()
		won := -1
		for i, err := range errs {
			if err != nil {
				require.ErrorIs(t, err, loop.ErrJournalConflict)
				continue
			}
			require.Equal(t, -1, won, "appenders %d and %d both won", won, i)
			won = i
		}
		require.NotEqual(t, -1, won, "no append won")
		history := load(t, j, session)
		require.Equal(t, numbered(session, won, 2), history.Events[round*2:])
		last = history.Last
	}
}
