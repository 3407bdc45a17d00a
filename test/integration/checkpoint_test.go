package integration

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A session goes on with a worker on another disk, and its files can be looked at, as they are and
// as they were, when nobody is there.
func TestCheckpoint_AFleetWhoseMachinesAreReplaced(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	run := func(args ...string) finished {
		t.Helper()
		got := execute(t, coordinator, launch{args: append(append([]string{"run"}, b.flags...), args...)})
		require.Equal(t, 0, got.code, got)
		return got
	}
	machine := func(do func()) {
		t.Helper()
		for _, w := range startWorkers(t, 1, b.flags) { // a data directory of its own
			do()
			w.stop(t)
		}
	}
	model := script(t,
		say("Building.", bash("c1", "mkdir d; printf 'one\\ntwo\\n' > d/text; printf 'a\\0b' > binary")), say("Done."),
		say("Going on.", bash("c2", "cat d/text; sed -i s/two/three/ d/text; rm binary; ln -s d l")), say("Done."))
	machine(func() { run("--session", "s-1", "--model", model, "build") })
	machine(func() { require.Contains(t, run("--session", "s-1", "--model", model, "go on").stderr, "two") })

	require.Equal(t, "one\nthree\n", b.session(t, "files", "s-1", "d/text").stdout)
	listed := b.session(t, "files", "s-1")
	require.Equal(t, 0, listed.code, listed)
	require.Regexp(t, `(?m)^drwx\S+ +0  d\n-rw\S+ +10  d/text\nL\S+ +0  l -> d\n`, listed.stdout)
	var calls []struct{ Calls []string }
	require.NoError(t, json.Unmarshal([]byte(b.session(t, "diff", "--json", "s-1").stdout), &calls))
	require.Len(t, calls, 2)
	require.Regexp(t, `(?m)^`+calls[0].Calls[0]+`  \S+ \S+  bash  \d+ set, 0 removed: binary, d, d/text$`, b.session(t, "diff", "s-1").stdout)
	require.Equal(t, "one\ntwo\n", b.session(t, "files", "--at", calls[0].Calls[0], "s-1", "d/text").stdout)
	require.Equal(t, "removed file binary\nchanged file d/text\n--- a/d/text\n+++ b/d/text\n@@ -1,2 +1,2 @@\n one\n-two\n+three\nnew symlink l\n",
		b.session(t, "diff", "s-1", calls[1].Calls[0]).stdout)

	for _, bad := range [][]string{{"files", "s-1", "nothing"}, {"files", "--at", "other", "s-1"}, {"diff", "s-1", "other"}, {"diff", "nobody"}} {
		require.Equal(t, 1, b.session(t, bad[0], bad[1:]...).code, filepath.Join(bad...))
	}
}
