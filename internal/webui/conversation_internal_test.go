package webui

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestCall_SaysHowLongItWaitedForAPerson: who approves a call, or answers it, has it wait, and so
// do approvals of other calls of its reply. Its card says that, and not only how long it was in the
// fleet.
func TestCall_SaysHowLongItWaitedForAPerson(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	queued, ran := 2.0, 61_000.0
	call := func(after time.Duration, what loop.EventType, id protocol.CallID, index int) loop.Event {
		fields := loop.CallFields{CallID: id, ToolCallID: string(id), Name: "bash", Arguments: "{}", Index: index}
		return loop.Event{Type: what, Time: begun.Add(after), Turn: 1, Step: 1, CallFields: fields}
	}
	asks, answered := call(100*time.Second, loop.EventQuestionAsked, "a", 0), call(160*time.Second, loop.EventAnswered, "a", 0)
	asks.Question = &protocol.Question{ID: "q", Message: "Who?"}
	answered.Question = asks.Question
	result := call(161*time.Second, loop.EventToolResult, "a", 0)
	result.Status, result.QueueMS, result.RunMS = "ok", &queued, &ran
	unknown := call(0, loop.EventToolCall, "c", 0)
	unknown.Step = 2
	c := newConversation("s")
	reply := loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "a", Name: "bash"}, {ID: "b", Name: "bash"}}}
	for i, e := range []loop.Event{
		{Type: loop.EventTurnStarted, Time: begun, Turn: 1},
		{Type: loop.EventModelReply, Time: begun, Turn: 1, Step: 1, ReplyFields: reply},
		call(time.Second, loop.EventApprovalAsked, "a", 0), call(91*time.Second, loop.EventPolicyDecision, "a", 0),
		call(92*time.Second, loop.EventToolCall, "a", 0), call(92*time.Second, loop.EventToolCall, "b", 1), asks, answered, result, unknown,
	} {
		c.add(&e, string(rune('1'+i))+"-0")
	}
	of := c.calls["a"]
	require.InDelta(t, 150_000, of.PersonMS, 0, "90 s for the approval, and 60 s for the answer")
	require.InDelta(t, 150_002, *of.WaitedMS(), 0)
	require.InDelta(t, 90_000, c.calls["b"].PersonMS, 0, "the reply's other call")
	require.Nil(t, c.calls["c"].WaitedMS())
	u := New(Options{Base: "/ui"}).ui
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/ui/sessions/s", nil)
	card, err := u.render(r, "session", "item", view{Data: of.item.copied(viewer{})})
	require.NoError(t, err)
	require.Contains(t, string(card), "waited for a person 2 min 30 s · waited 2.0 ms · ran 1 min 1 s")
}
