//go:build linux

package initd

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// deep makes a tree of that many levels below a directory, with a file of 8 KiB in the last one.
func deep(t *testing.T, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	name := strings.Repeat("d", 20) // longer than a path may be, all of them
	for range levels {
		require.NoError(t, unix.Mkdirat(fd, name, 0o700))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, unix.Close(fd))
		fd = next
	}
	file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	require.NoError(t, err)
	_, err = unix.Write(file, make([]byte, 8<<10))
	require.NoError(t, err)
	require.NoError(t, unix.Close(file))
	require.NoError(t, unix.Close(fd))
}

func TestTreeUsage_IsThatOfEveryFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := treeUsage(dir, maxLevels)
	for i := range 300 {
		sub := filepath.Join(dir, fmt.Sprint(i%7), fmt.Sprint(i%3))
		require.NoError(t, os.MkdirAll(sub, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprint(i)), make([]byte, 4<<10), 0o600))
	}
	got := treeUsage(dir, maxLevels)
	require.GreaterOrEqual(t, got, empty+300*4<<10)
	require.Less(t, got, empty+300*4<<10+29*(8<<10), "and that of 28 directories")
	require.NoError(t, os.Link(filepath.Join(dir, "0", "0", "0"), filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("/usr", filepath.Join(dir, "symlink")))
	require.InDelta(t, got, treeUsage(dir, maxLevels), 4<<10, "a file with two names is one file, and a link is not followed")
	require.Zero(t, treeUsage(filepath.Join(dir, "none"), maxLevels))
	require.Zero(t, treeUsage(filepath.Join(dir, "symlink"), maxLevels))
}

// TestTreeUsage_FilesWithNothingInThemCount: a file system can run out of them.
func TestTreeUsage_FilesWithNothingInThemCount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 200 {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600))
	}
	require.GreaterOrEqual(t, treeUsage(dir, maxLevels), uint64(200*4<<10))
}

func TestTreeUsage_OfADeepTreeIsSeenAndTakesNoTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := treeUsage(dir, maxLevels)
	start := time.Now()
	deep(t, dir, 3000)
	t.Logf("made in %s", time.Since(start))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "beside"), make([]byte, 4<<10), 0o600))
	start = time.Now()
	got := treeUsage(dir, maxLevels)
	took := time.Since(start)
	require.GreaterOrEqual(t, got, before+8<<10+4<<10)
	require.Less(t, took, time.Minute)
	t.Logf("3,000 levels in %s", took)
}

func TestTreeUsage_OfATreeWithoutEndIsEndless(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	deep(t, dir, 150)
	require.Less(t, treeUsage(dir, 151), uint64(10<<20))
	require.Equal(t, uint64(math.MaxUint64), treeUsage(dir, 150))
}
