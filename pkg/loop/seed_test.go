package loop_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
