package gitguard

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestComplete_WhileAnotherDirectoryIsCompleted: the lock of a record is the sign of a living
// process, so a process that completes something elsewhere hides no record from those that use its
// directory.
func TestComplete_WhileAnotherDirectoryIsCompleted(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	here, there := t.TempDir(), t.TempDir()
	for _, dir := range []string{here, there} {
		aside, err := NewAside(t.Context(), dir)
		require.NoError(t, err)
		if aside == nil {
			t.Skip("LOUD: there is no git")
		}
		out, err := exec.CommandContext(t.Context(), "git", "init", "-q", dir).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "hooks", "pre-commit"), []byte("#!/bin/sh\n"), 0o700))
		require.NoError(t, aside.record.leave(), "as when the process is killed")
	}
	elsewhere, err := abandoned(t.Context(), there)
	require.NoError(t, err)
	done, err := complete(t.Context(), here, true)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
	require.Len(t, elsewhere, 1)
	require.NoError(t, elsewhere[0].leave())
	done, err = complete(t.Context(), there, true)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
}

// TestReport_AnotherSessionIsKilled: what it has left for git is shown by the session that
// continues there, also if that began later, and its worker looks first.
func TestReport_AnotherSessionIsKilled(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	dir := t.TempDir()
	git := func(arguments ...string) {
		out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, arguments...)...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("LOUD: there is no git")
	}
	git("init", "-q")
	first, err := NewReport(t.Context(), dir, false, func(string) {})
	require.NoError(t, err)
	git("config", "core.pager", "x")
	second, err := NewReport(t.Context(), dir, false, func(string) {})
	require.NoError(t, err)
	worker, err := NewAside(t.Context(), dir)
	require.NoError(t, err)
	require.NoError(t, first.aside.record.leave(), "as when the process is killed")
	_, err = worker.Move(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Finding{{Path: ".git/config", What: "core.pager = x"}}, second.Findings(t.Context()))
	require.Empty(t, second.Findings(t.Context()), "once")
}
