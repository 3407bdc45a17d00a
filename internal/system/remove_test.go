//go:build linux

package system_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/test/escapetest"
)

// deep makes directories in each other, with a file in each, and returns to where it was.
func deep(t *testing.T, dir string, levels int, mode uint32) {
	t.Helper()
	at, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	for range levels {
		require.NoError(t, unix.Mkdirat(at, "d", 0o700))
		require.NoError(t, unix.Mknodat(at, "file", unix.S_IFREG|0o600, 0))
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Fchmod(at, mode))
		require.NoError(t, unix.Close(at))
		at = next
	}
	require.NoError(t, unix.Close(at))
}

// TestTree_DeeperThanFilesMayBeOpen: with a tenth of the descriptors, and in time that is that of
// the entries.
func TestTree_DeeperThanFilesMayBeOpen(t *testing.T) { //nolint:paralleltest // it has a limit of the process
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 300, Max: was.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was)) }()
	for _, levels := range []int{0, 1, 62, 63, 64, 65, 66, 127, 128, 129, 3000} {
		dir := filepath.Join(t.TempDir(), "tree")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.Mkdir(filepath.Join(dir, ".removed.0"), 0o700)) // a name that is used for what is moved
		deep(t, dir, levels, 0o700)
		start := time.Now()
		require.NoError(t, system.RemoveTree(dir), levels)
		t.Logf("%d levels in %s", levels, time.Since(start).Round(time.Microsecond))
		require.NoDirExists(t, dir, levels)
	}
}

// TestTree_LockedDirectories are entered by their owner, and everything else is left alone.
func TestTree_LockedDirectories(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		base := t.TempDir()
		outside, dir := filepath.Join(base, "outside"), filepath.Join(base, "tree")
		require.NoError(t, os.MkdirAll(filepath.Join(outside, "kept"), 0o700))
		for mode := range uint32(8) {
			name := filepath.Join(dir, strconv.Itoa(int(mode)))
			require.NoError(t, os.MkdirAll(name, 0o700))
			require.NoError(t, os.Symlink(outside, filepath.Join(name, "link")))
			require.NoError(t, unix.Mkfifo(filepath.Join(name, "fifo"), 0))
			deep(t, name, 200, mode<<6)
		}
		require.NoError(t, system.RemoveTree(dir))
		require.NoDirExists(t, dir)
		require.DirExists(t, filepath.Join(outside, "kept"))
		require.NoError(t, system.RemoveTree(dir), "it is not there")
		require.NoError(t, system.RemoveTree(filepath.Join(dir, "x")), "nor is what it was in")
		link := filepath.Join(base, "link")
		require.NoError(t, os.Symlink(outside, link))
		require.NoError(t, system.RemoveTree(link))
		require.NoFileExists(t, link)
		require.DirExists(t, filepath.Join(outside, "kept"))
		testIn(t, base)
	})
}

// TestTreeWhile_StopsAtOnce: whoever may not go on leaves what is there, and holds none of it.
func TestTreeWhile_StopsAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tree")
	require.NoError(t, os.Mkdir(dir, 0o700))
	const levels, steps = 200, 100
	deep(t, dir, levels, 0o700)
	stopped, asked := errors.New("stopped"), 0
	require.ErrorIs(t, system.RemoveTreeWhile(func() error {
		if asked++; asked > steps {
			return stopped
		}
		return nil
	}, dir), stopped)
	require.Equal(t, steps+1, asked)
	open, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range open {
		name, _ := os.Readlink(fd) // it may be closed by now
		require.NotContains(t, name, dir)
	}
	require.DirExists(t, dir)
	require.ErrorIs(t, system.RemoveTreeWhile(func() error { return stopped }, dir), stopped)
	require.DirExists(t, dir)
	require.NoError(t, system.RemoveTree(dir))
	require.NoDirExists(t, dir)
}

// testIn removes below a root, and not what a link leads to.
func testIn(t *testing.T, base string) {
	t.Helper()
	inside := filepath.Join(base, "inside")
	require.NoError(t, os.MkdirAll(filepath.Join(inside, "a", "b"), 0o700))
	deep(t, filepath.Join(inside, "a", "b"), 200, 0)
	require.NoError(t, os.Symlink(filepath.Join(base, "outside"), filepath.Join(inside, "link")))
	root, err := os.OpenRoot(inside)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, system.RemoveIn(root, "a/b"))
	require.DirExists(t, filepath.Join(inside, "a"))
	require.NoError(t, system.RemoveIn(root, "a/b/c"), "it is not there")
	require.Error(t, system.RemoveIn(root, "link/kept"), "it is outside")
	require.NoError(t, system.RemoveIn(root, "link"))
	require.DirExists(t, filepath.Join(base, "outside", "kept"))
}

// TestTree_GoesOnAfterAFailure: what cannot be removed is told, and stays alone.
func TestTree_GoesOnAfterAFailure(t *testing.T) { //nolint:paralleltest // its arms are processes of their own
	escapetest.InArms(t, true, func(t *testing.T) {
		t.Helper()
		if os.Geteuid() != 0 {
			return // who cannot mount has nothing that cannot be removed
		}
		dir := filepath.Join(t.TempDir(), "tree")
		mounted := filepath.Join(dir, "b", "mounted")
		require.NoError(t, os.MkdirAll(mounted, 0o700))
		for _, name := range []string{"a", "b", "c"} {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "x"), 0o700))
		}
		require.NoError(t, unix.Mount("none", mounted, "tmpfs", 0, ""))
		require.NoError(t, os.WriteFile(filepath.Join(mounted, "theirs"), nil, 0o600))
		err := system.RemoveTree(dir)
		require.ErrorIs(t, err, unix.EXDEV)
		require.ErrorContains(t, err, mounted)
		require.FileExists(t, filepath.Join(mounted, "theirs"))
		require.NoError(t, unix.Unmount(mounted, 0))
		left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		require.NoError(t, err)
		require.Equal(t, []string{mounted}, left)
		require.NoError(t, system.RemoveTree(dir))
	})
}
