package integration

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Sessions begin with a template that is made of a directory, or of a session.
func TestTemplate_SessionsBeginWithIt(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	do := func(command string, args ...string) finished {
		t.Helper()
		return execute(t, coordinator, launch{args: append(append([]string{command}, b.flags...), args...)})
	}
	template := func(args ...string) finished { return do("template", args...) }
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("one\n"), 0o600))
	model := script(t, say("", bash("c1", "cat f; echo two >> f")), say("Done."))
	for _, w := range startWorkers(t, 1, b.flags) { // which makes the fleet
		require.Equal(t, 0, template("create", "base", dir).code)
		for _, session := range []string{"s-1", "s-2"} {
			got := do("run", "--template", "base", "--session", session, "--model", model, "go")
			require.Equal(t, 0, got.code, got)
			require.Contains(t, got.stderr, "one")
		}
		require.Equal(t, 0, template("create", "second", "s-1").code)
		called := do("call", "--min-level", "none", "--template", "second", "read", `{"path": "f"}`)
		require.Equal(t, 0, called.code, called)
		require.Contains(t, called.stdout, `"content":"one\ntwo\n"`)
		w.stop(t)
	}
	require.Regexp(t, `(?m)^base +\S+ \S+ +1 file, 4 bytes\nsecond +\S+ \S+ +1 file, 8 bytes$`, template("ls").stdout)
	require.Equal(t, 0, template("rm", "base").code)
	require.Contains(t, template("rm", "base").stderr, "there is no template base (template ls lists them)")
	for want, all := range map[int][][]string{
		1: {
			{"template", "rm", "base"},
			{"template", "create", "second", dir},
			{"template", "create", "third", "nobody"},
			{"run", "--template", "base", "--model", model, "go"},
		},
		2: {
			{"template", "create", "No", dir},
			{"template", "create", "no", filepath.Join(dir, "f")},
			{"template", "rm", "a.b"},
			{"run", "--template", "a b", "--model", model, "go"},
			{"run", "--template", "base", "--workspace", dir, "--model", model, "go"},
		},
	} {
		for _, args := range all {
			got := do(args[0], args[1:]...)
			require.Equal(t, want, got.code, "%v %v", args, got)
		}
	}
}
