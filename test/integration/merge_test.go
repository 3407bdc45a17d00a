package integration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A fork at the end of a turn is merged back: files, conflicts, and its answer.
func TestSessionMerge_OfAFork(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	run := func(id, model, prompt string) finished {
		t.Helper()
		got := execute(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), "--session", id, "--model", model, prompt)})
		require.Equal(t, 0, got.code, got)
		return got
	}
	session := func(verb string, args ...string) string {
		t.Helper()
		got := b.session(t, verb, args...)
		require.Equal(t, 0, got.code, got)
		return got.stdout
	}
	first, second := say("", bash("c1", `printf '1\n2\n3\n' > both; echo x > clash`)), say("", bash("c2", `printf 'one\n2\n3\n' > both; echo parent > clash`))
	run("s-1", script(t, first, say("Begun.")), "begin")
	run("s-1", script(t, first, say("Begun."), second, say("Done.")), "go on")

	fork := strings.TrimSpace(session("fork", "--at", "turn 1", "--leave-effects", "s-1"))
	require.Equal(t, "1\n2\n3\n", session("files", fork, "both"))
	run(fork, script(t, first, say("Begun."), say("", bash("c3", `printf '1\n2\nthree\n' > both; echo fork > clash; echo new > new`)), say("The fork is done.")), "try")
	require.Contains(t, session("diff", "s-1", fork), "+three\n")

	got := session("merge", fork, "s-1")
	require.Contains(t, got, "changed: both, new\n")
	require.Contains(t, got, "CONFLICTS, changed on both sides, and left as they are in the workspace: clash\n")
	require.Equal(t, "one\n2\nthree\n", session("files", "s-1", "both"))
	require.Equal(t, "parent\n", session("files", "s-1", "clash"))
	require.Equal(t, "fork\n", session("files", "s-1", "clash.toolfleet-theirs"))
	require.Contains(t, session("export", "s-1"), `Its answer:\nThe fork is done.`)
	require.Contains(t, session("merge", fork, "s-1"), "The fork has nothing new to merge")
	run("s-1", script(t, first, say("Begun."), second, say("Done."), say("", bash("c4", "cat new")), say("Seen.")), "and now")

	for _, bad := range [][]string{{"merge", "s-1", fork}, {"merge", "nobody", "s-1"}, {"fork", "--at", "turn 9", "--leave-effects", "s-1"}, {"diff", "s-1", "nobody"}} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, bad)
	}
	require.Equal(t, 2, b.session(t, "fork", "--at", "turn x", "s-1").code)
}
