package loop_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// scratches is a reply that calls the scratchpad with each of the arguments.
func scratches(prefix string, arguments ...string) loop.Reply {
	reply := loop.Reply{Text: "noting"}
	for i, a := range arguments {
		reply.ToolCalls = append(reply.ToolCalls, loop.ToolCall{ID: fmt.Sprint(prefix, i), Name: "scratchpad", Arguments: a})
	}
	return reply
}

func scratchRig(t *testing.T, replies ...loop.Reply) *rig {
	t.Helper()
	set, err := toolset.Named("scratchpad")
	require.NoError(t, err)
	r := newRig(replies...)
	r.tools = set
	return r
}

func noting() []loop.Reply {
	return []loop.Reply{
		scratches("a", `{"action":"set","key":"plan","value":"first"}`, `{"action":"get","key":"plan"}`, `{"action":"set","key":"other","value":"x"}`),
		scratches("b", `{"action":"set","key":"plan","value":"second"}`, `{"action":"delete","key":"other"}`, `{"action":"list"}`,
			`{"action":"get","key":"other"}`, `{"action":"set","key":"k"}`),
		says("done"),
	}
}

func TestScratchpad_CallsOfAReplyAreInOrder(t *testing.T) {
	t.Parallel()
	r := scratchRig(t, noting()...)
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	said := texts(r.model.lastSeen())
	require.Contains(t, said, "tool: first")
	require.Contains(t, said, "tool: Keys of the scratchpad:\nplan (6 bytes)")
	require.Contains(t, fmt.Sprint(said), `The scratchpad has no key "other"`)
	require.Contains(t, fmt.Sprint(said), "value: required")
	requireProtocol(t, r.model.lastSeen())
}

// TestScratchpad_IsWhatTheJournalSays: a fork is a journal with the events of another one, and a
// session that is resumed after any event ends as one that runs through.
func TestScratchpad_IsWhatTheJournalSays(t *testing.T) {
	t.Parallel()
	whole := scratchRig(t, noting()...)
	_, err := whole.run(t.Context(), t, "go")
	require.NoError(t, err)
	want := texts(whole.model.lastSeen())
	events := whole.events(t)
	for cut := 2; cut < len(events); cut++ {
		r := scratchRig(t, noting()...)
		_, err := r.journal.Append(t.Context(), r.session, 0, events[:cut]...)
		require.NoError(t, err)
		_, err = r.runInput(t.Context(), t, loop.Input{})
		require.NoError(t, err)
		if cut < len(events)-1 { // else the model is not asked again
			require.Equal(t, want, texts(r.model.lastSeen()), "after %d events", cut)
		}
	}
}

func TestScratchpad_IsBounded(t *testing.T) {
	t.Parallel()
	var sets []string
	for i := range 101 {
		sets = append(sets, fmt.Sprintf(`{"action":"set","key":"k%d","value":"v"}`, i))
	}
	r := scratchRig(t, scratches("a", sets...), says("done"))
	_, err := r.run(t.Context(), t, "go")
	require.NoError(t, err)
	results := r.journaled(t, loop.EventToolResult)
	require.Nil(t, results[99].Error)
	require.Equal(t, protocol.CodeLimitReached, results[100].Error.Code)
}
