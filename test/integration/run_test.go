package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun_RepairsTheExample is `make demo`: everything in one process, the
// workspace used in place.
func TestRun_RepairsTheExample(t *testing.T) {
	t.Parallel()
	workspace := t.TempDir()
	require.NoError(t, os.CopyFS(workspace, os.DirFS(filepath.Join(module, "examples", "wordstats"))))
	before, err := goCommand(t.Context(), workspace, "test", "./...")
	require.Error(t, err, "the example must have a failing test:\n%s", before)
	source := content(t, filepath.Join(workspace, "text", "split.go"))
	model, err := filepath.Abs(filepath.Join(module, "examples", "wordstats.script.json"))
	require.NoError(t, err)

	got := execute(t, coordinator, launch{args: runFlags(t, "script:"+model, workspace,
		"--env", "GOCACHE="+goEnv(t.Context(), t, "GOCACHE"), "--env", "GOTOOLCHAIN=local", "--env", "GOWORK=off")})
	require.Equal(t, 0, got.code, got.stderr)
	require.Regexp(t, `^Fixed\. (?s:.*)counts now\.\n$`, got.stdout, "stdout is the answer and nothing else")
	for _, part := range []string{
		`isolates nothing`,                      // the warning of the driver
		`I'll run the tests first`,              // what the model says on its way
		`\[1\.1 bash\] +. queued`,               // each call as it is queued,
		`\[1\.1 bash\] +. running on \S+`,       // running
		`ok · on \S+, attempt 1 · queued .* ms`, // and done
		`FAIL: TestSplit`,                       // output of a tool
		`(?m)^ +│ \+.*text ended inside a word`, // the diff
	} {
		require.Regexp(t, part, got.stderr)
	}

	require.NotEqual(t, source, content(t, filepath.Join(workspace, "text", "split.go")), "used in place")
	after, err := goCommand(t.Context(), workspace, "test", "./...")
	require.NoError(t, err, after)
}

// TestRun_WithoutWorkspaceHasAnEmptyOne also goes on with a session: its id is all that
// the second process needs.
func TestRun_WithoutWorkspaceHasAnEmptyOne(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	model := script(t,
		say("Writing.", bash("c1", "ls -A | wc -l; echo kept > note.txt")),
		say("first answer"),
		say("Reading.", use("c2", "read", object{"path": "note.txt"})),
		say("second answer"))
	flags := []string{"run", "--json", "--model", model, "--data", data, "--sandbox", "process"}

	first := execute(t, coordinator, launch{args: append(flags, "write it")})
	require.Equal(t, 0, first.code, first.stderr)
	list := events(t, first.stdout)
	require.Equal(t, "0\n", results(list)["c1"].Content, "the workspace is empty")

	second := execute(t, coordinator, launch{args: append(flags, "--session", list[0].SessionID, "read it")})
	require.Equal(t, 0, second.code, second.stderr)
	again := events(t, second.stdout)
	require.Empty(t, ofType(again, "session_started"), "it was started before")
	require.Contains(t, results(again)["c2"].Content, "kept")
	require.Equal(t, "second answer", again[len(again)-1].Text)
}
