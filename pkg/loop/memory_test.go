package loop_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// remembering is a session that works, has a sub-agent work, and searches for what was said.
func remembering() byPrompt {
	return byPrompt{
		"go": {replies: []loop.Reply{
			{Text: "The pelican build is red, as the fixtures are missing: " + strings.Repeat("é", 600) + " walrus " + strings.Repeat("é", 600), ToolCalls: asks("a", "inline").ToolCalls},
			calls("b", "agent", `{"prompt":"left"}`),
			calls("c", "search_memory", `{"query":"PELICAN, fixtures!"}`, "search_memory", `{"query":"build","limit":1}`, "search_memory", `{"query":"zebra"}`, "search_memory", `{"query":"?!"}`, "search_memory", `{"query":"walrus"}`),
			calls("d", "search_memory", `{"query":"zebra"}`),
			says("done"),
		}},
		"left": {replies: []loop.Reply{says("A build of mine found fixtures in another place")}},
	}
}

func TestMemory_FindsThePassagesWithMostWords(t *testing.T) {
	t.Parallel()
	f := newFamily(t, remembering()).withSets(t, "memory")
	other := protocol.NewSessionID() // of which it reads nothing
	_, err := f.journal.Append(t.Context(), other, 0, loop.Event{Type: loop.EventTurnStarted, SessionID: other, Turn: 1, StartFields: loop.StartFields{Input: "pelican fixtures zebra"}})
	require.NoError(t, err)
	_, err = f.run(t.Context(), t)
	require.NoError(t, err)
	var found []string
	for _, m := range f.models["go"].lastSeen() {
		if m.Role == loop.RoleTool && m.Name == "search_memory" {
			found = append(found, m.Text)
		}
	}
	require.Len(t, found, 6)
	child := string(f.callID(t, 1, 2, 0))
	passages := strings.Split(found[0], "\n\n")
	require.Equal(t, "[3 passages have words of the query]", passages[0])
	require.True(t, strings.HasPrefix(passages[1], "[turn 1, step 1: model_reply]\nThe pelican build is red"), passages[1])
	require.Less(t, len(passages[1]), 500)
	require.Contains(t, []string{
		"[turn 1, step 1, sub-agent " + child + ": model_reply]\nA build of mine found fixtures in another place",
		"[turn 1, step 2: tool_result agent]\nA build of mine found fixtures in another place",
	}, passages[2])
	require.Len(t, strings.Split(found[1], "\n\n"), 2, "one passage")
	require.Equal(t, "[Nothing has these words]", found[2])
	require.Contains(t, found[3], `query "?!" has no word`)
	require.Contains(t, found[4], "é walrus é")
	require.Equal(t, "[Nothing has these words]", found[5], "searches are not found")
}

func TestMemory_CrashAtAnyAppendFindsTheSame(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family { return newFamily(t, remembering()).withSets(t, "memory") }, func(_, f *family, name string) {
		require.Len(t, f.journaled(t, loop.EventToolResult), 8, name)
	})
}
