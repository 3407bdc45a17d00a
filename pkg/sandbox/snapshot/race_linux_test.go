package snapshot_test

import (
	"bytes"
	gocontext "context"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// While a tree is packed, directories and files in it are exchanged with links to the outside and
// with FIFOs: nothing of the outside comes into the archive, no mode there is changed, and nothing
// waits.
func TestPack_NothingOfTheOutsideWhileTreesAreExchanged(t *testing.T) {
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
		require.NoError(t, os.Chmod(locked, 0)) // what is packed is unlocked for the moment
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
	packed, refused, start := 0, 0, time.Now()
	for time.Since(start) < time.Second || packed == 0 && time.Since(start) < time.Minute {
		var archive bytes.Buffer
		if _, _, err := snapshot.Pack(t.Context(), root, &archive, nil); err != nil {
			refused++ // it changes all the time
			continue
		}
		packed++
		require.NotContains(t, string(decompress(t, archive.Bytes())), "secret")
	}
	end()
	t.Logf("%d archives, %d given up", packed, refused)
	require.Positive(t, packed)
	for _, name := range []string{"b/locked", "b/c"} {
		info, err := os.Lstat(filepath.Join(outside, name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm(), name)
	}
}
