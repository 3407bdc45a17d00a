//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// While file operations run, names change between files, directories and symbolic
// links to the outside: nothing outside is ever read or changed.
func TestFS_NoEscapeWhileLinksAreSwapped(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	fs := open(t, dir)
	for _, at := range []string{outside, filepath.Join(dir, "real")} {
		require.NoError(t, os.MkdirAll(at, 0o755))
	}
	secret := filepath.Join(outside, "file")
	require.NoError(t, os.WriteFile(secret, []byte("secret"), 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "real", "file"), []byte("inside"), 0o666))
	for name, target := range map[string]string{"dir": "real", "link": "real/file", "hop": "/workspace/dir"} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	stop := make(chan struct{})
	var swaps sync.WaitGroup
	swaps.Go(func() {
		swap(t, stop, dir, "dir", "real", outside, "/workspace/real", filepath.Join(outside, "../"+filepath.Base(outside)))
	})
	swaps.Go(func() { swap(t, stop, dir, "link", "/workspace/real/file", secret, filepath.Join(dir, "hop/file")) })
	start := time.Now()
	var users sync.WaitGroup
	var counts [2]struct{ ok, failed int }
	for i := range counts {
		users.Go(func() {
			count := &counts[i]
			for races(start, count.ok > 0 && count.failed > 0) {
				ok, failed := useAll(t, fs, i)
				count.ok += ok
				count.failed += failed
			}
		})
	}
	users.Wait()
	close(stop)
	swaps.Wait()
	for _, count := range counts {
		require.Positive(t, count.ok, "operations inside work")
		require.Positive(t, count.failed, "links to the outside were met")
	}
	content, err := os.ReadFile(secret)
	require.NoError(t, err)
	require.Equal(t, "secret", string(content))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// races reports whether a race goes on: for a second, and until all was met that is to be met in
// it.
func races(start time.Time, met bool) bool {
	age := time.Since(start)
	return age < time.Second || !met && age < time.Minute
}

// swap makes name a symbolic link to one of the targets, in turns.
func swap(t *testing.T, stop <-chan struct{}, dir, name string, targets ...string) {
	t.Helper()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		temp := filepath.Join(dir, ".swap-"+name)
		if err := os.Symlink(targets[i%len(targets)], temp); err != nil {
			t.Errorf("symlink: %v", err)
			return
		}
		if err := os.Rename(temp, filepath.Join(dir, name)); err != nil {
			t.Errorf("rename: %v", err)
			return
		}
	}
}

// useAll tries every operation through the names that are swapped.
func useAll(t *testing.T, fs sandbox.FS, user int) (ok, failed int) {
	t.Helper()
	count := func(err error) bool {
		if err != nil {
			failed++
			return false
		}
		ok++
		return true
	}
	for _, path := range []string{"dir/file", "link", "hop/file"} {
		read, err := fs.Read(t.Context(), protocol.FilesRead{Path: path})
		if count(err) && string(read.Content) == "secret" {
			t.Errorf("read %s outside", path)
		}
		_, err = fs.Write(t.Context(), protocol.FilesWrite{Path: path, Content: []byte("inside " + strconv.Itoa(user))})
		count(err)
		_, err = fs.Edit(t.Context(), protocol.FilesEdit{Path: path, Edits: []protocol.FileEdit{{Old: "inside", New: "INSIDE"}}})
		count(err)
		found, err := fs.Search(t.Context(), protocol.FilesSearch{Path: path, Pattern: "secret"}, 0)
		if count(err) && len(found.Matches) > 0 {
			t.Errorf("searched %s outside", path)
		}
	}
	_, err := fs.Write(t.Context(), protocol.FilesWrite{Path: "dir/new/file", Content: []byte("inside")})
	count(err)
	_, err = fs.List(t.Context(), protocol.FilesList{Path: "dir"})
	count(err)
	return ok, failed
}
