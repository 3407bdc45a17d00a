package regular_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/regular"
)

// A reader sees what one of the writers wrote, whole, and nothing else is left.
func TestReplace_IsWhole(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, regular.ReplaceSynced(path, []byte("first")))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 50 {
				if err := regular.Replace(path, []byte(strings.Repeat(strconv.Itoa(i), 10_000))); err != nil {
					t.Error(err)
				}
				content, err := os.ReadFile(path)
				if err != nil || len(content) != 10_000 || strings.Trim(string(content), string(content[:1])) != "" {
					t.Error(err, len(content))
				}
			}
		})
	}
	all.Wait()
	entries, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	info, err := os.Stat(path)
	require.NoError(t, err)
	if os.PathSeparator == '/' {
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}
}

// Of several that create a file one does, and the others get an error that says that it is there.
func TestCreate_Once(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	errs := make([]error, 8)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() { errs[i] = regular.Create(path, []byte(strconv.Itoa(i))) })
	}
	all.Wait()
	first := slices.Index(errs, nil)
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strconv.Itoa(first), string(content))
	for i, err := range errs {
		if i != first {
			require.ErrorIs(t, err, fs.ErrExist)
		}
	}
	require.ErrorIs(t, regular.Create(filepath.Join(filepath.Dir(path), "none", "file"), nil), fs.ErrNotExist)
}
