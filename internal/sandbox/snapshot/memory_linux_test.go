package snapshot_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

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
