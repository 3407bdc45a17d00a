package snapshot_test

import (
	gocontext "context"
	"os"
	"path/filepath"
	"sync"
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
