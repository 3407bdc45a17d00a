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
	r.mustRun(t.Context(), t, "go")
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
		r.mustRun(t.Context(), t, input)
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
	other.mustRun(t.Context(), t, "go")
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
	r.mustRun(t.Context(), t, "go")
	require.Empty(t, r.fleet.ran(), "what was sent has its results")
	results := r.watch.of(loop.EventToolResult)
	require.Len(t, results, 2)
	require.Equal(t, sent, results[0].CallID)
	require.Empty(t, r.seed(t))

	r.mustRun(t.Context(), t, "again")
	require.Equal(t, []string{"2/1/0"}, r.fleet.ran())
	require.Equal(t, r.callID(t, 2, 1, 0), r.fleet.runs[0].ID)
	require.NotEmpty(t, r.seed(t))
}

// onCall is an event about the call with an index of the first step.
func onCall(kind loop.EventType, index int, id protocol.CallID, change ...func(*loop.Event)) loop.Event {
	e := loop.Event{Type: kind, Turn: 1, Step: 1, CallFields: loop.CallFields{Index: index, CallID: id, Name: "work"}}
	for _, f := range change {
		f(&e)
	}
	return e
}

func asking(question string) func(*loop.Event) {
	return func(e *loop.Event) { e.Question = &protocol.Question{ID: question} }
}

func ending(status protocol.Status) func(*loop.Event) {
	return func(e *loop.Event) { e.Status = string(status) }
}

func inLane(e *loop.Event) { e.Arguments, e.Lane = `{"n":1}`, "default/account/7" }

func inBackground(e *loop.Event) { e.Job = "job-1" }

func ids(events []*loop.Event) (list []protocol.CallID) {
	for _, e := range events {
		list = append(list, e.CallID)
	}
	return list
}

// A call is open from its reply, or from its tool_call if that came before the reply, until its
// result. One that continues in the background is a job until that ends.
func TestSessionState_WhatIsOpen(t *testing.T) {
	t.Parallel()
	reply := loop.Event{
		Type: loop.EventModelReply, Turn: 1, Step: 1,
		ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "x", Name: "work"}, {ID: "y", Name: "work"}, {ID: "z", Name: "work"}}},
	}
	events := []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1},
		onCall(loop.EventToolCall, 0, "c0", inLane), reply, onCall(loop.EventToolCall, 1, "c1", inLane),
	}
	s := loop.StateOf(events)
	require.Equal(t, 1, s.Turn.Turn)
	require.Equal(t, []protocol.CallID{"c0", "c1", ""}, ids(s.Calls()))
	require.Equal(t, "z", s.Calls()[2].ToolCallID)

	events = append(events, onCall(loop.EventToolResult, 0, "c0", inBackground), onCall(loop.EventToolResult, 1, "c1", ending(protocol.StatusOutcomeUnknown)))
	s = loop.StateOf(events)
	require.Equal(t, []protocol.CallID{""}, ids(s.Calls()))
	require.Equal(t, []protocol.CallID{"c0"}, ids(s.Jobs))
	require.Equal(t, "default/account/7", s.Jobs[0].Lane)
	require.JSONEq(t, `{"n":1}`, s.Jobs[0].Arguments)
	require.Equal(t, []protocol.CallID{"c1"}, ids(s.Unknown))
	require.JSONEq(t, `{"n":1}`, s.Unknown[0].Arguments)

	undone := onCall(loop.EventRevertEnded, 0, "u1", ending(protocol.StatusOutcomeUnknown))
	events = append(events, onCall(loop.EventToolResult, 2, "c2"), onCall(loop.EventJobEnded, 0, "c0"), loop.Event{Type: loop.EventTurnEnded, Turn: 1},
		onCall(loop.EventRevertStarted, 0, "u1", inLane), undone, onCall(loop.EventCallResolved, 0, "c1"))
	s = loop.StateOf(events)
	require.Nil(t, s.Turn)
	require.Empty(t, s.Calls())
	require.Empty(t, s.Jobs)
	require.Equal(t, []protocol.CallID{"u1"}, ids(s.Unknown))
	require.JSONEq(t, `{"n":1}`, s.Unknown[0].Arguments)

	s.Apply(&loop.Event{Type: loop.EventCopyStarted})
	require.Equal(t, loop.SessionState{}, s, "what is before was interrupted")
}

// A call asks one question after another, and its result ends them. An approval ends with any other
// event but the end of a job.
func TestSessionState_WhoIsAsked(t *testing.T) {
	t.Parallel()
	asked := []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1},
		onCall(loop.EventQuestionAsked, 0, "c0", asking("q1")), onCall(loop.EventQuestionAsked, 1, "c1", asking("q2")),
		onCall(loop.EventQuestionAsked, 1, "c1", asking("q3")), onCall(loop.EventApprovalAsked, 2, "c2"), onCall(loop.EventJobEnded, 0, "j"),
	}
	for name, test := range map[string]struct {
		next      loop.Event
		questions []protocol.CallID
	}{
		"another answer": {onCall(loop.EventAnswered, 1, "c1", asking("q2")), []protocol.CallID{"c0", "c1"}},
		"the answer":     {onCall(loop.EventAnswered, 1, "c1", asking("q3")), []protocol.CallID{"c0"}},
		"its result":     {onCall(loop.EventToolResult, 0, "c0"), []protocol.CallID{"c1"}},
		"a decision":     {onCall(loop.EventPolicyDecision, 2, "c2"), []protocol.CallID{"c0", "c1"}},
		"the turn's end": {loop.Event{Type: loop.EventTurnEnded, Turn: 1}, nil},
	} {
		s := loop.StateOf(asked)
		require.Equal(t, protocol.CallID("c2"), s.Approval.CallID)
		require.Equal(t, []protocol.CallID{"c0", "c1"}, ids(s.Questions))
		s.Apply(&test.next)
		require.Nil(t, s.Approval, name)
		require.Equal(t, test.questions, ids(s.Questions), name)
	}
}

// A bill has replies, failed ones, summaries and sub-agents; that of a session has no sub-agents.
func TestBill_OfASessionAndOfATurn(t *testing.T) {
	t.Parallel()
	used := func(kind loop.EventType, cost *float64) loop.Event {
		return onCall(kind, 0, "c", func(e *loop.Event) { e.Usage, e.CostUSD = &protocol.Usage{InputTokens: 10}, cost })
	}
	agent := used(loop.EventToolResult, new(4.0))
	agent.Spent = &protocol.Spending{Steps: 1}
	events := []loop.Event{
		used(loop.EventModelReply, new(1.0)), used(loop.EventReplyFailed, new(0.5)), used(loop.EventCompacted, new(2.0)), agent,
		used(loop.EventTurnEnded, new(7.5)), onCall(loop.EventToolResult, 0, "c"),
	}
	var turn loop.Bill
	for i := range events {
		turn.Add(&events[i])
	}
	require.Equal(t, int64(40), turn.Usage.InputTokens)
	require.InDelta(t, 7.5, *turn.CostUSD, 1e-9)
	session := loop.StateOf(events).Bill
	require.Equal(t, int64(30), session.Usage.InputTokens)
	require.InDelta(t, 3.5, *session.CostUSD, 1e-9)

	unknown := used(loop.EventModelReply, nil)
	turn.Add(&unknown)
	turn.Add(&events[0])
	require.Nil(t, turn.CostUSD, "one price is unknown")
	require.Equal(t, int64(60), turn.Usage.InputTokens)
}
