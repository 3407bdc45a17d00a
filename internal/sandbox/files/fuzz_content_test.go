//go:build unix

package files_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/aymanbagabas/go-udiff"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/files/internal/change"
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

// A notebook whose text does not change stays as it is, to the byte. A new cell is in its text.
func FuzzNotebook(f *testing.F) {
	const cell = `{"cell_type":"code","metadata":{},"source":["a\n","b"],"outputs":[{"text":"1\n"},{"data":{"image/png":"x","text/html":["y"]}},{"ename":"E","evalue":"v"}]}`
	f.Add(`{"nbformat":4,"nbformat_minor":5,"cells":[` + cell + `,{"cell_type":"raw","source":""}]}`)
	f.Add("{\r\n \"cells\": [\r\n  {\"cell_type\": \"markdown\", \"source\": \"\\n\"}\r\n ],\r\n \"nbformat\": 4\r\n}")
	f.Add(`{"nbformat":4,"cells":[]}`)
	f.Add(`{"nbformat":4,"Cells":[` + cell + `]}`)
	f.Add(`{"nbformat":4,"cells":[{"cell_type":"code","source":"%% cell 1 [code]"}]}`)
	f.Fuzz(func(t *testing.T, content string) {
		notebook, ok := change.ParseNotebook([]byte(content))
		if !ok {
			return
		}
		same, err := notebook.With(notebook.Text())
		require.NoError(t, err)
		require.Equal(t, content, string(same))
		longer, err := notebook.With(append(notebook.Text(), "%% cell [markdown]\nnew\n"...))
		require.NoError(t, err)
		again, ok := change.ParseNotebook(longer)
		require.True(t, ok, "%s", longer)
		require.Equal(t, string(notebook.Text())+fmt.Sprintf("%%%% cell %d [markdown]\nnew\n", notebook.Cells()+1), string(again.Text()))
	})
}
