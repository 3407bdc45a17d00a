package snapshot_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// onSmallDisk runs the calling test again in a process with mounts of its own. There it returns a
// directory that is a disk of 16 MiB, here "".
func onSmallDisk(t *testing.T) (disk string) {
	t.Helper()
	const arm = "TOOLFLEET_SMALL_DISK"
	if disk := os.Getenv(arm); disk != "" {
		require.NoError(t, unix.Mount("none", disk, "tmpfs", 0, "size=16m"))
		return disk
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = []string{arm + "=" + t.TempDir(), "TMPDIR=" + t.TempDir()}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if len(out) == 0 && err != nil {
		t.Skipf("UNSUPPORTED: no process here has users and mounts of its own: %v", err)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+t.Name())
	return ""
}

// TestRestore_OnADiskThatIsFull says so, touches nothing outside, and takes nothing for restored
// that is not; when there is room again, the same restore makes the rest.
func TestRestore_OnADiskThatIsFull(t *testing.T) {
	t.Parallel()
	disk := onSmallDisk(t)
	if disk == "" {
		return
	}
	half := string(large())
	small := tree{}
	for i := range 60 {
		small["s"+strconv.Itoa(i)] = node{body: half[i*1000 : i*1000+100_000]}
	}
	for name, rest := range map[string]tree{"small": small, "large": {"large": {body: half + half[1:]}}} {
		restoreWithoutRoom(t, filepath.Join(disk, name), rest)
	}
}

// restoreWithoutRoom restores a tree that is larger than the room that there is.
func restoreWithoutRoom(t *testing.T, home string, rest tree) {
	t.Helper()
	outside := tree{"kept": {body: "theirs"}}
	beside := newRoot(t, outside)
	before := tree{"d": {dir: true}, "d/f": {body: "1"}, "large": {body: "small"}, "gone": {body: "x"}}
	after := tree{"d": {dir: true}, "d/f": {body: "2"}, "out": {link: beside.Name()}}
	maps.Copy(after, rest)
	first, next := saved(t, newRoot(t, before), nil), saved(t, newRoot(t, after), nil)

	require.NoError(t, os.Mkdir(home, 0o700))
	defer func() { require.NoError(t, os.RemoveAll(home)) }()
	root, index := openRoot(t, home), snapshot.Index{}
	_, err := snapshot.Restore(t.Context(), root, first.tree, index, first.bodies, nil)
	require.NoError(t, err)
	empty := fill(t, home+".filler", 4<<20)
	_, err = snapshot.Sync(t.Context(), root, first.manifest, next.tree, next.bodies, nil)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Equal(t, before.filled(), content(t, root), "a sync has room for all, or changes nothing")
	for range 2 {
		_, err = snapshot.Restore(t.Context(), root, next.tree, index, next.bodies, nil)
		require.ErrorIs(t, err, unix.ENOSPC)
		require.Equal(t, outside.filled(), content(t, beside))
		for _, known := range []snapshot.Index{maps.Clone(index), {}} {
			delta, err := snapshot.Save(t.Context(), root, next.tree, known, newMemory(), nil)
			require.NoError(t, err)
			require.False(t, delta.Empty(), "what was restored in part is taken for whole")
		}
	}
	empty()
	_, err = snapshot.Restore(t.Context(), root, next.tree, index, next.bodies, nil)
	require.NoError(t, err)
	require.Equal(t, after.filled(), content(t, root))
	require.Equal(t, outside.filled(), content(t, beside))
}

// fill fills the disk of a path but for some bytes, until the returned function is called.
func fill(t *testing.T, path string, left int) (empty func()) {
	t.Helper()
	var disk unix.Statfs_t
	require.NoError(t, unix.Statfs(filepath.Dir(path), &disk))
	free := int(disk.Bavail) * int(disk.Bsize)
	require.NoError(t, os.WriteFile(path, make([]byte, free-left), 0o600))
	return func() { require.NoError(t, os.Remove(path)) }
}
