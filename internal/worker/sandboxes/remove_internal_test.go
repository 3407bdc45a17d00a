package sandboxes

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Root may enter everything, so this shows something when an ordinary user runs it.
func TestRemoveUnmounted_DirectoriesThatNobodyMayEnter(t *testing.T) {
	t.Parallel()
	home, outside := filepath.Join(t.TempDir(), "home"), t.TempDir()
	inner := filepath.Join(home, "a", "b")
	require.NoError(t, os.MkdirAll(inner, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(inner, "file"), nil, 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(home, "link")))
	require.NoError(t, os.Chmod(inner, 0))
	require.NoError(t, os.Chmod(filepath.Dir(inner), 0))
	require.NoError(t, RemoveUnmounted(home))
	require.NoDirExists(t, home)
	require.DirExists(t, outside)
}
