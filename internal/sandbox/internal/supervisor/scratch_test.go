package supervisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
)

// TestEmpty_LeavesTheTwoDirectories: empty, accessible, the same ones, and nothing beside them.
func TestScratch_Empty_LeavesTheTwoDirectories(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	s, err := supervisor.OpenScratch(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	before, err := os.Stat(s.Home())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(s.Home(), strings.Repeat("d/", 200)), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(s.Temp(), "locked", "below"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(s.Temp(), "link")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "beside"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "beside.d"), 0))
	require.NoError(t, os.Chmod(filepath.Join(s.Temp(), "locked"), 0))
	require.NoError(t, os.Chmod(s.Home(), 0o500))
	require.NoError(t, s.Empty())
	after, err := os.Stat(s.Home())
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a sandbox may have it mounted")
	require.Equal(t, os.FileMode(0o700), after.Mode().Perm())
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{s.Home(), s.Temp()}, entries)
	below, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.Empty(t, below)
	require.FileExists(t, filepath.Join(outside, "kept"))
}

// TestEmpty_DirectoryThatIsALink is removed as such and made again.
func TestScratch_Empty_DirectoryThatIsALink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	s, err := supervisor.OpenScratch(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, os.Remove(s.Home()))
	require.NoError(t, os.Symlink(outside, s.Home()))
	require.NoError(t, s.Empty())
	require.FileExists(t, filepath.Join(outside, "kept"))
	info, err := os.Lstat(s.Home())
	require.NoError(t, err)
	require.True(t, info.IsDir())
}
