//go:build unix

package files_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A patch that is the difference of two texts makes one of the other, and whatever
// else is taken for a patch is applied or changes nothing.
func FuzzPatch(f *testing.F) {
	for _, seed := range [][3]string{
		{"a\nb\nc\n", "a\nB\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"},
		{"a\r\nb", "a\r\nb\r\n", "@@\n+x\n"},
		{"", "x", "```diff\n--- a\n+++ b\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n```"},
		{"x\ny\nx\ny\n", "x\ny\nx\nz\n", "*** Begin Patch\n@@ -3 +3 @@\n-x\n*** End Patch"},
		{"-- a\n", "++ b\n", "@@ -1 +1 @@\n--- a\n+++ b\n"},
		{"\n\n", "\n", "@@ -1,2 +1 @@\n\n-\n"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dir := f.TempDir()
	fs := open(f, dir)
	host := filepath.Join(dir, "file")
	f.Fuzz(func(t *testing.T, before, after, patch string) {
		require.NoError(t, os.WriteFile(host, []byte(before), 0o600))
		_, err := fs.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: patch})
		requireFaultOrNil(t, err)
		got, readErr := os.ReadFile(host)
		require.NoError(t, readErr)
		if err != nil {
			require.Equal(t, before, string(got))
		}
		if before == after || strings.Contains(before+after, "\r") {
			return // line ends follow the file
		}
		require.NoError(t, os.WriteFile(host, []byte(before), 0o600))
		difference := udiff.Unified("a/file", "b/file", before, after)
		_, err = fs.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: difference})
		require.NoError(t, err, "%q", difference)
		got, readErr = os.ReadFile(host)
		require.NoError(t, readErr)
		require.Equal(t, after, string(got), "%q", difference)
	})
}

// What a glob and a search find are files of the workspace, in order, and lines that match.
func FuzzFind(f *testing.F) {
	for _, seed := range [][3]string{
		{"*.go", "a|b", "*.log\n!x.log\n/a/**\n"},
		{"**/[ab]*", `^\s*x$`, "[\n\\\n**/\n"},
		{"{a,b/**}", `(?i)é`, "a/\n!a/b\n"},
		{"../..", "[", "*"},
		{"a/./b", `\x00`, "\xff"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dir := f.TempDir()
	names := []string{"a/b/c.go", "a/x.log", "b/ä.go", "top.go", "x y"}
	for i, name := range names {
		require.NoError(f, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(f, os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat("a b\n x\n\xff\xe9é", i+1)), 0o600))
	}
	fs := open(f, dir)
	f.Fuzz(func(t *testing.T, pattern, expression, rules string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(rules), 0o600))
		found, err := fs.Glob(t.Context(), protocol.FilesGlob{Pattern: pattern})
		requireFaultOrNil(t, err)
		require.IsIncreasing(t, append([]string{""}, found.Paths...))
		for _, name := range found.Paths {
			require.Contains(t, append(names, ".gitignore"), name)
		}
		searched, err := fs.Search(t.Context(), protocol.FilesSearch{Pattern: expression}, 0)
		requireFaultOrNil(t, err)
		compiled, compileErr := regexp.Compile(expression)
		require.True(t, err != nil || compileErr == nil)
		for _, match := range searched.Matches {
			require.Contains(t, append(names, ".gitignore"), match.Path)
			content, err := os.ReadFile(filepath.Join(dir, match.Path))
			require.NoError(t, err)
			line := bytes.Split(content, []byte{'\n'})[match.Line-1]
			if !utf8.Valid(line) || bytes.HasPrefix(line, []byte("\uFEFF")) {
				continue // the text is another
			}
			require.True(t, compiled.Match(line) || compiled.Match(bytes.TrimSuffix(line, []byte{'\r'})))
		}
	})
}

// Whatever place of whatever document is replaced, the document is JSON, has the value
// there, and nothing else has changed.
func FuzzJSON(f *testing.F) {
	for _, seed := range [][3]string{
		{`{"a": [1, {"b": null}]}`, "/a/1/b", `{"c":[1.50]}`},
		{"{\n\t\"a\": {}\n}\n", "/a/x", "[]"},
		{"[]", "/-", "1"},
		{`{"":{"~/":1,"~/":2}}`, "//~0~1", `"x"`},
		{"", "", "null"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	dir := f.TempDir()
	fs := open(f, dir)
	host := filepath.Join(dir, "doc.json")
	f.Fuzz(func(t *testing.T, document, query, value string) {
		require.NoError(t, os.WriteFile(host, []byte(document), 0o600))
		old, readErr := fs.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: query})
		requireFaultOrNil(t, readErr)
		_, err := fs.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: query, Content: []byte(value)})
		requireFaultOrNil(t, err)
		after, hostErr := os.ReadFile(host)
		require.NoError(t, hostErr)
		if err != nil {
			require.Equal(t, document, string(after))
			return
		}
		require.True(t, json.Valid(after), "%q", after)
		if strings.HasSuffix(query, "/-") {
			return
		}
		got, err := fs.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: query})
		require.NoError(t, err)
		require.True(t, reflect.DeepEqual(compact(t, []byte(value)), compact(t, got.Value)), "%q and %q", value, got.Value)
		if readErr != nil || query == "" {
			return
		}
		_, err = fs.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: query, Content: json.RawMessage(old.Value)})
		require.NoError(t, err)
		back, hostErr := os.ReadFile(host)
		require.NoError(t, hostErr)
		require.Equal(t, compact(t, []byte(document)), compact(t, back), "the value before brings the document before back")
	})
}

func compact(t *testing.T, text []byte) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, json.Compact(&out, text))
	return out.String()
}

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
