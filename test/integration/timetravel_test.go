package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a session was after a call can be had as a directory and as a session of its own, without a
// worker, and with one the session itself goes back.
func TestTimeTravel_PullForkAndRestore(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	run := func(id, model string) finished {
		t.Helper()
		got := execute(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), "--session", id, "--model", model, "go on")})
		require.Equal(t, 0, got.code, got)
		return got
	}
	session := func(verb string, args ...string) string {
		t.Helper()
		got := b.session(t, verb, args...)
		require.Equal(t, 0, got.code, got)
		return got.stdout
	}
	machine := func(do func()) {
		t.Helper()
		for _, w := range startWorkers(t, 1, b.flags) {
			do()
			w.stop(t)
		}
	}
	building := say("Building.", bash("c1", "mkdir d; echo one > d/f; head -c 200000 /dev/zero | tr '\\0' x > large"))
	model := script(t, building, say("Done."), say("", bash("c2", "echo two > d/f; rm large")), say("Done."))
	machine(func() {
		run("s-1", model)
		run("s-1", model)
	})
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal([]byte(session("diff", "--json", "s-1")), &calls))
	require.Len(t, calls, 2)
	first := calls[0].Calls[0]

	dir := filepath.Join(t.TempDir(), "pulled")
	session("pull", "--at", first, "s-1", dir)
	requireFile(t, filepath.Join(dir, "d/f"), "one\n")
	requireFile(t, filepath.Join(dir, "large"), strings.Repeat("x", 200_000))
	session("pull", "s-1", dir) // on from there
	requireFile(t, filepath.Join(dir, "d/f"), "two\n")
	require.NoFileExists(t, filepath.Join(dir, "large"))

	fork := strings.TrimSpace(session("fork", "--at", first, "--leave-effects", "s-1"))
	require.Equal(t, "one\n", session("files", fork, "d/f"))
	require.Contains(t, session("log", fork), "Building.")
	require.Equal(t, "two\n", session("files", "s-1", "d/f"))
	forked := script(t, building, say("", bash("c3", "cat d/f; wc -c large; echo three > d/f")), say("Done."))
	machine(func() {
		require.Contains(t, session("restore", "--at", first, "--leave-effects", "s-1"), "2 files written")
		require.Contains(t, run(fork, forked).stderr, "one")
		session("rm", "s-1")
	})
	require.Equal(t, "three\n", session("files", fork, "d/f"))
	for _, bad := range [][]string{
		{"pull", "--at", "other", fork, dir}, {"fork", "--at", "other", fork}, {"fork", "nobody"}, {"fork", "s-1"},
	} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, bad)
	}
	require.Equal(t, 2, b.session(t, "restore", fork).code, "--at is missing")
	require.Equal(t, 2, b.session(t, "fork", "--at", "a.b", fork).code)
}

func requireFile(t *testing.T, path, want string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, string(content))
}
