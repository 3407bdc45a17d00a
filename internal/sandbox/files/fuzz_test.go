//go:build unix

package files_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Whatever the path, nothing outside of the workspace is seen or changed, and a
// failure is a fault.
func FuzzPath(f *testing.F) {
	for _, path := range []string{
		"", ".", "..", "a", "a/b", "../x", "/workspace", "/workspace/../x", "/", "//", "a/../../x", "./a//b/", "link/x",
		"up/x", "a\x00", "\xff", "-", "~", "a/./../..", "/workspace/a/../../..", strings.Repeat("a/", 3000), ".. ", "...",
	} {
		f.Add(path)
	}
	base := f.TempDir()
	require.NoError(f, os.WriteFile(filepath.Join(base, "x"), []byte("secret"), 0o600))
	dir := filepath.Join(base, "ws")
	require.NoError(f, os.Mkdir(dir, 0o755))
	require.NoError(f, os.Symlink(base, filepath.Join(dir, "link")))
	require.NoError(f, os.Symlink("..", filepath.Join(dir, "up")))
	fs := open(f, dir)
	f.Fuzz(func(t *testing.T, path string) {
		for range 2 { // the second time something may be there
			read, err := fs.Read(t.Context(), protocol.FilesRead{Path: path})
			requireFaultOrNil(t, err)
			require.NotEqual(t, "secret", string(read.Content))
			_, err = fs.Stat(t.Context(), protocol.FilesExists{Path: path})
			requireFaultOrNil(t, err)
			_, err = fs.List(t.Context(), protocol.FilesList{Path: path})
			requireFaultOrNil(t, err)
			_, err = fs.Write(t.Context(), protocol.FilesWrite{Path: path, Content: []byte("inside")})
			requireFaultOrNil(t, err)
		}
		entries, err := os.ReadDir(base)
		require.NoError(t, err)
		require.Len(t, entries, 2)
		content, err := os.ReadFile(filepath.Join(base, "x"))
		require.NoError(t, err)
		require.Equal(t, "secret", string(content))
	})
}

func requireFaultOrNil(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var fault *protocol.Error
		require.ErrorAs(t, err, &fault)
		require.NotEmpty(t, fault.Message)
		require.Less(t, len(fault.Message), 20_000)
	}
}

// An edit does what replacing in a string does, or changes nothing.
func FuzzEdit(f *testing.F) {
	f.Add("one two", "two", "2", false)
	f.Add("aaa", "aa", "b", false)
	f.Add("aaaa", "aa", "b", true)
	f.Add("a\r\nb\r\n", "a\nb", "x", false)
	f.Add("", "x", "y", true)
	f.Add("\x00\xff", "\xff", "", true)
	f.Add("\x01\xff", "\xff", "", true)
	f.Add("  x\n  y\n", "x\ny\n", "z", false)
	dir := f.TempDir()
	fs := open(f, dir)
	host := filepath.Join(dir, "file")
	f.Fuzz(func(t *testing.T, content, before, after string, all bool) {
		require.NoError(t, os.WriteFile(host, []byte(content), 0o600))
		result, err := fs.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: before, New: after, ReplaceAll: all}}})
		got, readErr := os.ReadFile(host)
		require.NoError(t, readErr)
		requireFaultOrNil(t, err)
		asBytes := !utf8.ValidString(before) || !utf8.ValidString(after)
		if strings.Contains(content+before+after, "\r") || strings.HasPrefix(content, "\uFEFF") || !utf8.ValidString(content) && !asBytes {
			return // line ends follow the file, a mark is no text, and an encoding is heeded
		}
		n := strings.Count(content, before)
		if strings.Contains(content, "\x00") {
			require.Equal(t, content, string(got), "binary files are not edited")
			return
		}
		switch {
		case err != nil:
			require.Equal(t, content, string(got))
			require.True(t, before == "" || before == after || n == 0 || !all)
		case all:
			require.Equal(t, strings.ReplaceAll(content, before, after), string(got))
			require.Equal(t, n, result.Replacements)
		default:
			require.Equal(t, 1, n)
			require.Equal(t, strings.Replace(content, before, after, 1), string(got))
			require.Equal(t, 1, result.Replacements)
		}
	})
}
