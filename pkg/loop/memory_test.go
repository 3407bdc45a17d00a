package loop_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
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
	f.mustRun(t.Context(), t)
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

// TestMemory_ScriptsWithoutSpaces: a part of a sentence is found, and the passage shown has the
// match.
func TestMemory_ScriptsWithoutSpaces(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("filler ", 100)
	for _, test := range []struct{ text, query, shown string }{
		{long + "\u6628\u65e5\u306e\u4f1a\u8b70\u3067\u4e88\u7b97\u3092\u627f\u8a8d\u3057\u307e\u3057\u305f\u3002" + long, "\u4e88\u7b97\u3092\u627f\u8a8d", "\u4f1a\u8b70\u3067\u4e88\u7b97\u3092\u627f\u8a8d"},
		{long + "\u6211\u4eec\u5728\u5317\u4eac\u7684\u670d\u52a1\u5668\u4e0a\u90e8\u7f72\u4e86\u65b0\u7248\u672c" + long, "\u670d\u52a1\u5668", "\u5317\u4eac\u7684\u670d\u52a1\u5668\u4e0a"},
		{long + "\u9ed2\u732b" + long, "\u732b", "\u9ed2\u732b"},
		{long + "\u30b5\u30fc\u30d0\u30fc" + long, "\u30b5\u30fc\u30d0\u30fc", "\u30b5\u30fc\u30d0\u30fc"},
		{"important " + long + "the port 8080 " + long, "port", "the port 8080"},
		{strings.Repeat("\u0130", 400) + " the port 8080 " + long, "PORT", "the port 8080"},
	} {
		f := newFamily(t, byPrompt{"go": {replies: []loop.Reply{
			{Text: test.text, ToolCalls: calls("a", "search_memory", `{"query":"`+test.query+`"}`, "search_memory", `{"query":"\u72ac\u5c0f\u5c4b"}`).ToolCalls}, says("done"),
		}}}).withSets(t, "memory")
		f.mustRun(t.Context(), t)
		var found []string
		for _, m := range f.models["go"].lastSeen() {
			if m.Role == loop.RoleTool {
				found = append(found, m.Text)
			}
		}
		require.Len(t, found, 2)
		require.Contains(t, found[0], test.shown)
		require.Equal(t, "[Nothing has these words]", found[1])
	}
}

func TestMemory_CrashAtAnyAppendFindsTheSame(t *testing.T) {
	t.Parallel()
	requireCrashesChangeNothing(t, 15, func() *family { return newFamily(t, remembering()).withSets(t, "memory") }, func(_, f *family, name string) {
		require.Len(t, f.journaled(t, loop.EventToolResult), 8, name)
	})
}

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
	r.mustRun(t.Context(), t, "go")
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
	whole.mustRun(t.Context(), t, "go")
	want := texts(whole.model.lastSeen())
	events := whole.events(t)
	for cut := 2; cut < len(events); cut++ {
		r := scratchRig(t, noting()...)
		_, err := r.journal.Append(t.Context(), r.session, 0, events[:cut]...)
		require.NoError(t, err)
		r.mustRunInput(t.Context(), t, loop.Input{})
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
	r.mustRun(t.Context(), t, "go")
	results := r.journaled(t, loop.EventToolResult)
	require.Nil(t, results[99].Error)
	require.Equal(t, protocol.CodeLimitReached, results[100].Error.Code)
}
