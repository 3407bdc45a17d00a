package loop_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// whole is a session that has a turn behind it, and in its second one does what a session can: it
// works with sub-agents on forks, messages, triggers and a scratchpad, and is compacted.
func whole(t *testing.T) *family {
	t.Helper()
	f := forking(t)
	both := f.models["go"].replies[0]
	f.models["go"].replies = append([]loop.Reply{asks("a", "work", "greedy"), asks("b", "work"), says("the first turn")},
		both,
		calls("c", "send_message", `{"channel":"work","text":"one"}`, "add_timer", `{"at":"2026-03-01T09:00:00Z","prompt":"wake up"}`,
			"watch_channel", `{"channel":"work"}`, "scratchpad", `{"action":"set","key":"plan","value":"first"}`),
		calls("d", "scratchpad", `{"action":"get","key":"plan"}`, "list_triggers", `{}`),
		asks("e", "work", "inline"), says("the second turn"))
	for i := range f.models["go"].replies {
		f.models["go"].replies[i].Usage = protocol.Usage{InputTokens: int64(100 * (i + 1))}
	}
	f.opts.Compaction = &loop.Compaction{Model: &summarizer{}, At: 600}
	f, _ = f.withTriggers(t)
	return f.withSets(t, "triggers", "channels", "scratchpad")
}

// lived are the events of the first turn of such a session as its fork has them, which was merged
// into, and of which a person reverted one call and resolved another.
func lived(t *testing.T) []loop.Event {
	t.Helper()
	f := whole(t)
	_, err := f.run(t.Context(), t)
	require.NoError(t, err)
	events := f.events(t)
	for i := range events { // as package session makes a fork
		events[i].SessionID, events[i].Seed = "fork", ""
	}
	of := loop.NoteFields{Reverts: events[3].CallID}
	revert := loop.CallFields{CallID: "revert-1", Name: "undo"}
	return append(events,
		loop.Event{Type: loop.EventSessionForked, NoteFields: loop.NoteFields{From: f.session}},
		loop.Event{Type: loop.EventRevertStarted, Turn: 1, NoteFields: of, CallFields: revert},
		loop.Event{Type: loop.EventRevertEnded, Turn: 1, NoteFields: of, CallFields: revert, Status: "ok", Text: "[it was undone]"},
		loop.Event{Type: loop.EventCallResolved, Turn: 1, CallFields: loop.CallFields{CallID: "unknown-1"}, Status: "did_not", Text: "[it did not happen]"},
		loop.Event{Type: loop.EventSessionMerged, Turn: 1, Text: "[a fork was merged]", NoteFields: loop.NoteFields{From: "other", Checkpoint: 3}})
}

// Wherever the second turn of a session is interrupted that is a fork, was merged into, and has
// reverted calls, it ends as one that is not: each call, fork, merge, message and trigger is there
// once, and no summary more.
func TestRun_CrashAtAnyAppendOfAWholeLife(t *testing.T) {
	t.Parallel()
	before := lived(t)
	requireCrashesChangeNothing(t, 30, func() *family {
		f := whole(t)
		f.before = before
		return f
	}, func(clean, f *family, name string) {
		require.Equal(t, slices.Sorted(slices.Values(clean.kinds())), slices.Sorted(slices.Values(f.kinds())), name)
		require.Len(t, f.fleet.posts["default.work"], 1, name)
		require.Len(t, f.set.ever, 2, name)
		counts := map[loop.EventType]int{}
		for _, e := range f.events(t) {
			counts[e.Type]++
		}
		require.Equal(t, []int{2, 2, 1, 1}, []int{
			counts[loop.EventTurnStarted], counts[loop.EventTurnEnded], counts[loop.EventCompacted], counts[loop.EventSessionMerged],
		}, name)
		requireOneResultEach(t, f.events(t)[len(before):])
		require.Contains(t, texts(f.models["go"].lastSeen()), "tool: first", name)
		writer, is := f.opts.Compaction.Model.(*summarizer)
		require.True(t, is)
		for _, text := range []string{"[it was undone]", "[it did not happen]", "[a fork was merged]"} {
			require.Contains(t, writer.asked[0], text, name)
		}
	})
}
