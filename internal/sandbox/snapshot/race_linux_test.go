package snapshot_test

import (
	"bytes"
	gocontext "context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// While a tree is saved, directories and files in it are exchanged with links to the outside and
// with FIFOs: nothing of the outside comes into the bodies, no mode there is changed, and nothing
// waits.
func TestSave_NothingOfTheOutsideWhileTreesAreExchanged(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	for _, deep := range []string{"a/b/c", "x"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, deep), 0o755))
	}
	for _, name := range []string{"a/b/c/file", "a/b/locked", "x/file", "plain"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("inside"), 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "b/c"), 0o755))
	for _, name := range []string{"file", "b/locked", "b/c/file"} {
		require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte("secret"), 0o600))
	}
	for _, locked := range []string{filepath.Join(dir, "a/b/locked"), filepath.Join(outside, "b/locked"), filepath.Join(outside, "b/c")} {
		require.NoError(t, os.Chmod(locked, 0)) // what is saved is unlocked for the moment
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(outside, "b/c"), 0o755) })
	for name, target := range map[string]string{"out": outside, "out-b": filepath.Join(outside, "b"), "out-file": filepath.Join(outside, "file")} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	ctx, cancel := gocontext.WithCancel(t.Context())
	var wg sync.WaitGroup
	pairs := [][2]string{{"a", "out"}, {"a/b", "out-b"}, {"plain", "fifo"}, {"x/file", "out-file"}}
	above := make([]*os.File, len(pairs)) // opened before anything is exchanged
	for i, pair := range pairs {
		above[i], err = os.Open(filepath.Dir(filepath.Join(dir, pair[0])))
		require.NoError(t, err)
		defer above[i].Close()
	}
	for i, pair := range pairs {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = unix.Renameat2(int(above[i].Fd()), filepath.Base(pair[0]), unix.AT_FDCWD, filepath.Join(dir, pair[1]), unix.RENAME_EXCHANGE)
			}
		})
	}
	end := func() { cancel(); wg.Wait() }
	defer end()
	whole, refused, start := 0, 0, time.Now()
	for time.Since(start) < time.Second || whole == 0 && time.Since(start) < time.Minute {
		next, bodies := snapshot.Tree{}, newMemory()
		delta, err := snapshot.Save(t.Context(), root, next, snapshot.Index{}, bodies, nil)
		if err != nil {
			refused++ // it changes all the time
			continue
		}
		require.NoError(t, delta.Outline(t.Context(), bodies))
		next.Apply(delta, "")
		for name, node := range next {
			content, err := snapshot.LoadBytes(t.Context(), bodies, node.Parts, 1<<20)
			require.NoError(t, err)
			require.NotContains(t, string(content), "secret", name)
		}
		if len(next) > 0 {
			whole++
		}
	}
	end()
	t.Logf("%d trees, %d given up", whole, refused)
	require.Positive(t, whole)
	for _, name := range []string{"b/locked", "b/c"} {
		info, err := os.Lstat(filepath.Join(outside, name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm(), name)
	}
}

// TestSave_DirectoriesComeAndGo while it reads them: no save fails.
func TestSave_DirectoriesComeAndGo(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"d": {dir: true}, "d/e": {dir: true}, "f": {body: "1"}})
	ctx, cancel := gocontext.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = root.RemoveAll("d")
			_ = root.MkdirAll("d/e", 0o700)
		}
	})
	for range 3000 {
		delta, err := snapshot.Save(t.Context(), root, snapshot.Tree{}, snapshot.Index{}, newMemory(), nil)
		require.NoError(t, err)
		require.Contains(t, delta.Set, "f")
	}
}

// TestMemory_DoesNotGrowWithFiles: a process that saves and restores a file of 256 MiB has taken
// less than 160 MiB of the system, all in all.
func TestMemory_DoesNotGrowWithFiles(t *testing.T) {
	t.Parallel()
	const arm, size, most = "TOOLFLEET_LARGE_FILE", 256 << 20, 160 << 20
	if os.Getenv(arm) != "" {
		saveAndRestore(t, size)
		return
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.Env = []string{arm + "=1", "TMPDIR=" + t.TempDir()}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, line, found := strings.Cut(string(out), "taken: ")
	require.True(t, found, "%s", out)
	var taken int
	_, err = fmt.Sscanf(line, "%d", &taken)
	require.NoError(t, err)
	t.Logf("%d MiB", taken>>20)
	require.Less(t, taken, most)
}

// TestSave_OfASmallFileTakesLittle memory: each write of a tool is a save.
func TestSave_OfASmallFileTakesLittle(t *testing.T) { //nolint:paralleltest // it counts what the process allocates
	root, bodies := newRoot(t, tree{"f": {body: "small"}}), newMemory()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := snapshot.Save(t.Context(), root, snapshot.Tree{}, snapshot.Index{}, bodies, nil)
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// saveAndRestore saves and restores a file, and prints what the process has taken.
func saveAndRestore(t *testing.T, size int64) {
	t.Helper()
	root, bodies := newRoot(t, nil), snapshot.Directory(t.TempDir())
	file, err := root.Create("large")
	require.NoError(t, err)
	part := bytes.Repeat([]byte("content "), snapshot.MaxPart/8)
	for i := range size / snapshot.MaxPart {
		_, err = file.Write(fmt.Appendf(part[:0], "%8d", i)[:snapshot.MaxPart])
		require.NoError(t, err)
	}
	require.NoError(t, file.Close())
	delta, err := snapshot.Save(t.Context(), root, snapshot.Tree{}, snapshot.Index{}, bodies, nil)
	require.NoError(t, err)
	require.Equal(t, size, delta.Stats.Kept)
	to := newRoot(t, nil)
	stats, err := snapshot.Restore(t.Context(), to, delta.Set, snapshot.Index{}, bodies, nil)
	require.NoError(t, err)
	require.Equal(t, size, stats.Bytes)
	var memory runtime.MemStats // without what the race detector takes
	runtime.ReadMemStats(&memory)
	fmt.Println("taken:", memory.Sys)
	require.NoError(t, os.Remove(filepath.Join(to.Name(), "large")))
}

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
