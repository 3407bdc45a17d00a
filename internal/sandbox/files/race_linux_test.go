package files_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// While operations go through whole trees, directories and files are exchanged, in one step, with
// links to the outside, FIFOs and each other: nothing outside is seen or changed, and nothing waits
// for somebody to write to a FIFO.
func TestFS_NoEscapeWhileTreesAreExchanged(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	fs := open(t, dir)
	for _, deep := range []string{"tree/a/b/c", "tree/x", "spare", "new"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, deep), 0o755))
	}
	for _, name := range []string{"tree/a/b/c/file", "tree/x/file", "spare/file", "plain"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("inside"), 0o666))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(outside, "b/c"), 0o755))
	for _, name := range []string{"file", "b/file", "b/c/file"} {
		require.NoError(t, os.WriteFile(filepath.Join(outside, name), []byte("secret"), 0o666))
	}
	before := looks(t, outside)
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink("../../"+filepath.Base(outside)+"/b", filepath.Join(dir, "out-b")))
	require.NoError(t, os.Symlink("/workspace/tree", filepath.Join(dir, "in"))) // whose places are exchanged
	require.NoError(t, os.Symlink(filepath.Join(dir, "in/a"), filepath.Join(dir, "in-a")))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	pairs := [][2]string{{"tree/a", "out"}, {"tree/a/b", "out-b"}, {"tree/x", "spare"}, {"plain", "fifo"}, {"tree/x/file", "fifo"}}
	var parents []*os.File // opened before anything is exchanged: who exchanges must not follow the links either
	for _, pair := range pairs {
		parent, err := os.Open(filepath.Dir(filepath.Join(dir, pair[0])))
		require.NoError(t, err)
		defer parent.Close()
		parents = append(parents, parent)
	}
	top, err := os.Open(dir)
	require.NoError(t, err)
	defer top.Close()
	for i, pair := range pairs {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = unix.Renameat2(int(parents[i].Fd()), filepath.Base(pair[0]), int(top.Fd()), pair[1], unix.RENAME_EXCHANGE)
			}
		})
	}
	var ok, failed, slow int
	for start := time.Now(); races(start, ok > 0 && failed > 0); {
		for _, try := range treeOperations(fs) {
			began := time.Now()
			seen, err := try(t.Context())
			if time.Since(began) > time.Minute {
				slow++
			}
			require.NotContains(t, seen, "secret")
			if err == nil {
				ok++
				continue
			}
			var fault *protocol.Error
			require.ErrorAs(t, err, &fault)
			failed++
		}
	}
	cancel()
	wg.Wait()
	t.Logf("%d operations done, %d refused", ok, failed)
	require.Positive(t, ok)
	require.Positive(t, failed, "nothing was raced")
	require.Zero(t, slow)
	require.Equal(t, before, looks(t, outside))
}

// treeOperations go through trees; they return what they have seen of contents.
func treeOperations(fs sandbox.FS) []func(context.Context) (string, error) {
	read := func(path string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			r, err := fs.Read(ctx, protocol.FilesRead{Path: path})
			return string(r.Content), err
		}
	}
	write := func(path string) func(context.Context) (string, error) {
		return func(ctx context.Context) (string, error) {
			_, err := fs.Write(ctx, protocol.FilesWrite{Path: path, Content: []byte("inside")})
			return "", err
		}
	}
	return []func(context.Context) (string, error){
		read("tree/a/b/c/file"), read("tree/a/file"), read("plain"), read("tree/x/file"),
		read("in/a/b/c/file"), read("in-a/b/file"), read("in-a/file"), write("in/a/b/made"), write("in-a/new/file"),
		write("tree/a/b/c/file"), write("tree/a/b/made"), write("plain"), write("tree/a/new/dir/file"),
		func(ctx context.Context) (string, error) {
			found, err := fs.Search(ctx, protocol.FilesSearch{Path: "tree", Pattern: "secret"}, 0)
			var seen strings.Builder
			for _, match := range found.Matches {
				seen.WriteString(match.Text)
			}
			return seen.String(), err
		},
		func(ctx context.Context) (string, error) {
			_, err := fs.Glob(ctx, protocol.FilesGlob{Pattern: "**/file"})
			return "", err
		},
		func(ctx context.Context) (string, error) {
			_, err := fs.List(ctx, protocol.FilesList{Path: "tree/a/b"})
			return "", err
		},
		func(ctx context.Context) (string, error) {
			_, err := fs.Edit(ctx, protocol.FilesEdit{Path: "tree/a/b/c/file", Patch: "@@ -1 +1 @@\n-secret\n+changed\n"})
			return "", err
		},
	}
}

// looks is what a directory is like: names, contents, modes and times of change.
func looks(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		info, infoErr := os.Lstat(path)
		if err = errors.Join(err, infoErr); err != nil {
			return err
		}
		text := info.Mode().String() + info.ModTime().String()
		if entry.Type().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += string(content)
		}
		all[path] = text
		return nil
	}))
	return all
}
