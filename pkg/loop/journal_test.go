package loop_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/loop/looptest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestExampleJournal(t *testing.T) {
	t.Parallel()
	looptest.RunJournal(t, func(t *testing.T) loop.Journal {
		t.Helper()
		return &lineJournal{dir: t.TempDir()}
	})
}

// A journal that is cut off anywhere, as by a loss of power, leaves a session that goes on, and
// runs nothing a second time that the fleet has a result of.
func TestRun_GoesOnWhereverItsJournalEnds(t *testing.T) {
	t.Parallel()
	session, input := protocol.NewSessionID(), loop.Input{Text: "go", ID: wire.RandomCallID()}
	run := func(r *rig, dir string) (loop.TurnResult, error) {
		r.session, r.journal = session, &lineJournal{dir: dir}
		return r.runInput(t.Context(), t, input)
	}
	clean, dir := newRig(busy()...), t.TempDir()
	want, err := run(clean, dir)
	require.NoError(t, err)
	whole, err := os.ReadFile((&lineJournal{dir: dir}).file(session))
	require.NoError(t, err)
	conversation := settled(t, clean)

	dir = t.TempDir()
	for size := range len(whole) {
		if size != 0 && whole[size-1] != '\n' && size%397 != 0 {
			continue // every end of an event, and many places within
		}
		require.NoError(t, os.WriteFile((&lineJournal{dir: dir}).file(session), whole[:size], 0o600))
		r := newRig(busy()...)
		r.fleet.known = clean.fleet.known
		result, err := run(r, dir)
		require.NoError(t, err, size)
		require.Equal(t, want, result, size)
		if r.seed(t) == clean.seed(t) {
			require.Empty(t, r.fleet.ran(), size)
		} else { // it ends before its first turn, so nothing was sent
			require.Equal(t, clean.fleet.ran(), r.fleet.ran(), size)
		}
		if whole[max(size, 1)-1] == '\n' {
			require.Equal(t, conversation, settled(t, r), size)
		}
	}
}

// The JSON of an event is what scripts read and what journals store: names, and their order, stay.
func TestEvent_JSONStaysAsItIs(t *testing.T) {
	t.Parallel()
	golden, err := os.ReadFile("testdata/event.json")
	require.NoError(t, err)
	decoder := json.NewDecoder(bytes.NewReader(golden))
	decoder.DisallowUnknownFields()
	var event loop.Event
	require.NoError(t, decoder.Decode(&event))
	for _, field := range reflect.VisibleFields(reflect.TypeFor[loop.Event]()) {
		require.False(t, reflect.ValueOf(event).FieldByIndex(field.Index).IsZero(), "the golden file has no %s", field.Name)
	}

	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	require.NoError(t, encoder.Encode(event))
	require.Equal(t, string(golden), encoded.String())
}

// tightJournal takes no event that has more than so many bytes.
type tightJournal struct {
	looptest.Journal

	most int
}

func (j *tightJournal) Append(ctx context.Context, session protocol.SessionID, expected uint64, events ...loop.Event) (uint64, error) {
	for i := range events {
		if body, err := json.Marshal(events[i]); err != nil || len(body) > j.most {
			return 0, loop.ErrEventTooLarge
		}
	}
	return j.Journal.Append(ctx, session, expected, events...)
}

// Whatever of a turn is too large for the journal, the turn ends, and the next one goes on.
func TestRun_WhateverIsTooLargeForTheJournalTheTurnEnds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 20_000)
	call := asks("a", "work", "inline")
	call.ToolCalls[0].Arguments = `{"n":1` + strings.Repeat(" ", 20_000) + `}`
	for name, replies := range map[string][]loop.Reply{
		"an answer":  {says(long), says("checked"), says("checked")},
		"arguments":  {call, says("done"), says("checked"), says("checked")},
		"the result": {asks("a", "long", "work"), says("done"), says("checked"), says("checked")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outcomes := map[loop.Outcome]bool{}
			for most := 19_900; most < 20_600; most += 7 {
				r, journal := newRig(replies...), &tightJournal{most: most}
				r.journal, r.tools = journal, []tools.Tool{tools.New("long", "Returns a long text.", func(context.Context, struct {
					N int `json:"n,omitempty"`
				},
				) (string, error) {
					return long, nil
				})}
				result, err := r.run(t.Context(), t, "go")
				require.NoError(t, err, most)
				outcomes[result.Outcome] = true
				if result.Outcome == loop.OutcomeFailed {
					require.Equal(t, codes.PayloadTooLarge, result.Error.Code)
					r.model.replies = []loop.Reply{says("checked")}
				}
				ended := r.watch.of(loop.EventTurnEnded)
				require.Len(t, ended, 1, most)
				settled(t, r)
				requireOneResultEach(t, r.events(t))
			}
			require.True(t, outcomes[loop.OutcomeAnswered])
			require.Equal(t, name != "the result", outcomes[loop.OutcomeFailed])
		})
	}
}

// A prompt that is too large begins nothing.
func TestRun_APromptThatIsTooLargeBeginsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(says("checked"))
	r.journal = &tightJournal{most: 1000}
	result, err := r.run(t.Context(), t, strings.Repeat("x", 1000))
	require.ErrorIs(t, err, loop.ErrEventTooLarge)
	require.Equal(t, codes.PayloadTooLarge, result.Error.Code)
	require.Empty(t, r.events(t))
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
}

// foretold are results for every place of a session, under the ids that whoever knows the session
// can derive.
func foretold(session protocol.SessionID) map[protocol.CallID]*protocol.Result {
	results := map[protocol.CallID]*protocol.Result{}
	for place := range 64 {
		call := protocol.Call{ID: wire.NewCallID(session, "", 1+place/16, 1+place/4%4, place%4), SessionID: session}
		forged := wire.NewResult(&call, protocol.StatusOK, nil)
		forged.WorkerID, forged.Value = "forger", wire.NoopResult{}
		results[call.ID] = &forged
	}
	return results
}

// Who stores results, but reads no journal, cannot answer calls before they are sent.
func TestSeed_NobodyElseForetellsIDs(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "greedy", "inline"), says("done"), asks("b", "work"), says("done"))
	r.fleet.known = foretold(r.session)
	for _, input := range []string{"go", "again"} {
		_, err := r.run(t.Context(), t, input)
		require.NoError(t, err)
	}
	require.Equal(t, []string{"1/1/0", "1/1/1", "2/1/0"}, r.fleet.ran())
	for _, e := range r.watch.of(loop.EventToolResult) {
		require.NotEqual(t, protocol.WorkerID("forger"), e.WorkerID)
	}
	seeds := 0
	for _, e := range r.events(t) {
		if e.Seed != "" {
			require.Equal(t, loop.EventTurnStarted, e.Type)
			require.GreaterOrEqual(t, len(e.Seed), 26, "128 bits in base32")
			seeds++
		}
	}
	require.Equal(t, 1, seeds)
	for _, e := range r.watch.events {
		require.Empty(t, e.Seed, "observers pass on what they are told")
	}
	other := newRig(asks("a", "work"), says("done"))
	_, err := other.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.NotEqual(t, r.seed(t), other.seed(t))
}

// A turn that was begun without a seed is resumed under the ids that its calls have; the next one
// has one.
func TestSeed_JournalsWithoutOneGoOn(t *testing.T) {
	t.Parallel()
	r := newRig(asks("a", "work", "work"), says("done"), asks("b", "work"), says("done"))
	r.fleet.known = foretold(r.session)
	sent := wire.NewCallID(r.session, "", 1, 1, 0)
	_, err := r.journal.Append(t.Context(), r.session, 0,
		loop.Event{Type: loop.EventSessionStarted, SessionID: r.session},
		loop.Event{Type: loop.EventTurnStarted, SessionID: r.session, Turn: 1, StartFields: loop.StartFields{Input: "go"}},
		loop.Event{Type: loop.EventModelReply, SessionID: r.session, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: r.model.replies[0].ToolCalls}},
		loop.Event{Type: loop.EventToolCall, SessionID: r.session, Turn: 1, Step: 1, CallFields: loop.CallFields{CallID: sent, ToolCallID: "a0", Name: "work"}})
	require.NoError(t, err)
	_, err = r.run(t.Context(), t, "go")
	require.NoError(t, err)
	require.Empty(t, r.fleet.ran(), "what was sent has its results")
	results := r.watch.of(loop.EventToolResult)
	require.Len(t, results, 2)
	require.Equal(t, sent, results[0].CallID)
	require.Empty(t, r.seed(t))

	_, err = r.run(t.Context(), t, "again")
	require.NoError(t, err)
	require.Equal(t, []string{"2/1/0"}, r.fleet.ran())
	require.Equal(t, r.callID(t, 2, 1, 0), r.fleet.runs[0].ID)
	require.NotEmpty(t, r.seed(t))
}
