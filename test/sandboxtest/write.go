//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func writeTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"a new file with its directories": writeNew,
		"a file that exists":              writeExisting,
		"through a link":                  writeLink,
		"through a link to nothing":       writeDanglingLink,
		"too large":                       writeTooLarge,
		"the diff has bounds":             writeDiff,
		"side by side":                    writeConcurrent,
		"readers see old or new":          writeAtomic,
		"a name of full length":           writeLongName,
	}
}

func (f *tree) mode(t *testing.T, name string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(f.host(name))
	require.NoError(t, err)
	return info.Mode()
}

func writeNew(t *testing.T, f *tree) {
	got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "a/b/c.txt", Content: []byte("one\ntwo\n")})
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\n", f.get(t, "a/b/c.txt"))
	require.Equal(t, protocol.FilesWriteResult{
		Path: "a/b/c.txt", Bytes: 8, SHA256: digest("one\ntwo\n"), Created: true,
		Diff: "--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n",
	}, got)
	require.EqualValues(t, 0o644, f.mode(t, "a/b/c.txt"))
	require.Equal(t, 0o755|os.ModeDir, f.mode(t, "a/b"))
	require.Equal(t, []string{"c.txt"}, f.names(t, "a/b"), "nothing else is left")
	got, err = f.Write(t.Context(), protocol.FilesWrite{Path: "empty"})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesWriteResult{Path: "empty", SHA256: digest(""), Created: true}, got)
	require.Empty(t, f.get(t, "empty"))
}

func writeExisting(t *testing.T, f *tree) {
	f.put(t, "run.sh", "one\ntwo\n")
	require.NoError(t, os.Chmod(f.host("run.sh"), 0o750))
	got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "run.sh", Content: []byte("one\n2\n")})
	require.NoError(t, err)
	require.False(t, got.Created)
	require.Equal(t, "--- a/run.sh\n+++ b/run.sh\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n", got.Diff)
	require.EqualValues(t, 0o750, f.mode(t, "run.sh"))
	require.Equal(t, "one\n2\n", f.get(t, "run.sh"))
	got, err = f.Write(t.Context(), protocol.FilesWrite{Path: "run.sh", Content: []byte("one\n2\n")})
	require.NoError(t, err)
	require.Empty(t, got.Diff)
}

func writeLink(t *testing.T, f *tree) {
	f.put(t, "real/target", "old\n")
	f.link(t, "real", "dir")
	f.link(t, "../dir/target", "links/link")
	f.link(t, "links/link", "chain")
	_, err := f.Write(t.Context(), protocol.FilesWrite{Path: "chain", Content: []byte("new\n")})
	require.NoError(t, err)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "links/link", Edits: []protocol.FileEdit{{Old: "new", New: "newer"}}})
	require.NoError(t, err)
	require.Equal(t, "newer\n", f.get(t, "real/target"))
	for _, link := range []string{"dir", "links/link", "chain"} {
		require.NotZero(t, f.mode(t, link)&os.ModeSymlink, link)
	}
	require.Equal(t, []string{"target"}, f.names(t, "real"))
}

func writeDanglingLink(t *testing.T, f *tree) {
	f.link(t, "sub/target", "link")
	got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "link", Content: []byte("new")})
	require.NoError(t, err)
	require.True(t, got.Created)
	require.Equal(t, "new", f.get(t, "sub/target"))
	require.NotZero(t, f.mode(t, "link")&os.ModeSymlink)
}

func writeTooLarge(t *testing.T, f *tree) {
	f.put(t, "file", "old")
	_, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: make([]byte, isolation.MaxFileSize+1)})
	requireFault(t, err, codes.TooLarge)
	require.Equal(t, "old", f.get(t, "file"))
	got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: make([]byte, isolation.MaxFileSize)})
	require.NoError(t, err)
	require.EqualValues(t, isolation.MaxFileSize, got.Bytes)
	require.NoError(t, os.Truncate(f.host("file"), 1<<40))
	got, err = f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("small\n")})
	require.NoError(t, err, "what is too large can be replaced")
	require.Empty(t, got.Diff)
	require.Equal(t, "small\n", f.get(t, "file"))
}

func writeDiff(t *testing.T, f *tree) {
	f.put(t, "file", strings.Repeat("old line\n", 5000))
	got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte(strings.Repeat("new line\n", 5000))})
	require.NoError(t, err)
	require.Less(t, len(got.Diff), 9<<10)
	require.Contains(t, got.Diff, "left out")
	got, err = f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("a\x00b")})
	require.NoError(t, err)
	require.Empty(t, got.Diff)
	got, err = f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("text")})
	require.NoError(t, err)
	require.Empty(t, got.Diff)
}

func writeConcurrent(t *testing.T, f *tree) {
	const files, rounds = 8, 10
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			name := fmt.Sprintf("dir/sub%d/file%d", i%3, i)
			if _, err := f.Write(t.Context(), protocol.FilesWrite{Path: name, Content: []byte("n0\n")}); err != nil {
				t.Errorf("Write: %v", err)
			}
			for n := range rounds {
				req := protocol.FilesEdit{Path: name, Edits: []protocol.FileEdit{{Old: fmt.Sprintf("n%d\n", n), New: fmt.Sprintf("n%d\n", n+1)}}}
				if _, err := f.Edit(t.Context(), req); err != nil {
					t.Errorf("Edit: %v", err)
				}
			}
		})
	}
	wg.Wait()
	for i := range files {
		require.Equal(t, fmt.Sprintf("n%d\n", rounds), f.get(t, fmt.Sprintf("dir/sub%d/file%d", i%3, i)))
	}
}

func writeAtomic(t *testing.T, f *tree) {
	versions := []string{strings.Repeat("a", 100_000), strings.Repeat("b", 50_000)}
	f.put(t, "file", versions[0])
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for i := range 50 {
			if _, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte(versions[i%2])}); err != nil {
				t.Errorf("Write: %v", err)
			}
		}
	})
	for {
		select {
		case <-stop:
			wg.Wait()
			return
		default:
			require.Contains(t, versions, f.get(t, "file"))
		}
	}
}

func writeLongName(t *testing.T, f *tree) {
	name := strings.Repeat("n", 255)
	_, err := f.Write(t.Context(), protocol.FilesWrite{Path: name, Content: []byte("one")})
	require.NoError(t, err)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: name, Content: []byte("two")})
	require.NoError(t, err)
	require.Equal(t, []string{name}, f.names(t, ""))
}
