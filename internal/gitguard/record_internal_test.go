package gitguard

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestComplete_WhileAnotherDirectoryIsCompleted: the lock of a record is the sign of a living process,
// so a process that completes something elsewhere hides no record from those that use its directory.
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
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".git", "hooks", "pre-commit"), []byte("#!/bin/sh\n"), 0o700)) //nolint:gosec // a hook
		require.NoError(t, aside.record.leave(), "as when the process is killed")
	}
	elsewhere, err := abandoned(t.Context(), there)
	require.NoError(t, err)
	done, err := complete(t.Context(), here)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
	require.Len(t, elsewhere, 1)
	require.NoError(t, elsewhere[0].leave())
	done, err = complete(t.Context(), there)
	require.NoError(t, err)
	require.Equal(t, []string{".git/hooks/pre-commit"}, done.moved)
}
