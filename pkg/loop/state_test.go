package loop_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	reply := loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "x", Name: "work"}, {ID: "y", Name: "work"}, {ID: "z", Name: "work"}}}}
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
