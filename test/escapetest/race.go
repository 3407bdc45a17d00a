//go:build linux

package escapetest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// raceTime is how long directories are swapped beneath file operations, and more if these have not
// met them by then.
const raceTime = 3 * time.Second

// swapRace swaps a directory of the workspace with a symlink to a directory of the host,
// as fast as it can, while file operations go through it.
func (b *bench) swapRace(t *testing.T) {
	inside, link := filepath.Join(b.workspace, "race"), filepath.Join(b.workspace, "race-link")
	require.NoError(t, os.Mkdir(inside, 0o777))
	require.NoError(t, os.Chmod(inside, 0o777))
	for _, name := range []string{"public", "victim"} {
		require.NoError(t, os.WriteFile(filepath.Join(inside, name), []byte("inside"), 0o666))
		require.NoError(t, os.Chmod(filepath.Join(inside, name), 0o666))
	}
	require.NoError(t, os.Symlink(b.host.Dir, link))
	var swaps, operations, reached, escapes atomic.Int64
	var wg sync.WaitGroup
	start := time.Now()
	races := func() bool {
		age, met := time.Since(start), swaps.Load() > 0 && reached.Load() > 0
		return age < raceTime || !met && age < time.Minute
	}
	wg.Go(func() {
		for races() {
			if unix.Renameat2(unix.AT_FDCWD, inside, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE) == nil {
				swaps.Add(1)
			}
		}
	})
	for range 2 {
		wg.Go(func() {
			fs := b.sandbox.FS()
			for n := 0; races(); n++ {
				operations.Add(1)
				read, err := fs.Read(t.Context(), protocol.FilesRead{Path: "race/public"})
				if err == nil && bytes.Contains(read.Content, []byte(b.host.Secret)) {
					escapes.Add(1)
				}
				if _, write := fs.Write(t.Context(), protocol.FilesWrite{Path: "race/victim", Content: fmt.Append(nil, "overwritten ", n)}); err == nil && write == nil {
					reached.Add(1)
				}
			}
		})
	}
	wg.Wait()
	data, err := os.ReadFile(filepath.Join(b.host.Dir, "victim"))
	require.NoError(t, err)
	t.Logf("%d swaps, %d rounds of reading and writing of which %d met the directory, %d escapes", swaps.Load(), operations.Load(), reached.Load(), escapes.Load())
	require.NotContains(t, string(data), "overwritten")
	require.Zero(t, escapes.Load())
	require.Positive(t, swaps.Load())
	require.Positive(t, reached.Load(), "the file operations never met the directory: nothing was raced")
}
