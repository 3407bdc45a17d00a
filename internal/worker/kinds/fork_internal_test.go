package kinds

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// The file with the merged forks is bounded, and is replaced whole: a process that is killed while
// it writes leaves the one or the other.
func TestMerged_IsBoundedAndWhole(t *testing.T) {
	t.Parallel()
	path, merged := filepath.Join(t.TempDir(), "merged.json"), map[string]uint64{}
	for i := range maxMerged + 10 {
		noteMerged(merged, fmt.Sprint("fork-", i), uint64(i+100))
	}
	noteMerged(merged, "late", 1) // a fork whose last checkpoint is an old one
	require.Len(t, merged, maxMerged)
	require.NotContains(t, merged, "fork-10")
	require.Contains(t, merged, "fork-11")
	require.Contains(t, merged, "late")
	require.NoError(t, writeMerged(path, merged))
	before, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, before.Close()) }()
	require.NoError(t, writeMerged(path, map[string]uint64{"f": 7}))
	old, err := io.ReadAll(before)
	require.NoError(t, err)
	require.Contains(t, string(old), `"late":1`)
	read, err := readMerged(path)
	require.NoError(t, err)
	require.Equal(t, map[string]uint64{"f": 7}, read)
	require.NoError(t, os.WriteFile(path, []byte("null"), 0o600))
	read, err = readMerged(path)
	require.NoError(t, err)
	noteMerged(read, "f", 8)
	require.Equal(t, map[string]uint64{"f": 8}, read)
}
