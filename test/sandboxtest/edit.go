//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func editTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"one occurrence":           editOne,
		"every occurrence":         editAll,
		"not there":                editNotFound,
		"more than once":           editNotUnique,
		"arguments that cannot be": editArguments,
		"the result is too large":  editTooLarge,
		"bytes stay as they are":   editBytes,
	}
}

func editOne(t *testing.T, f *tree) {
	f.put(t, "file", "one\ntwo\nthree\n")
	require.NoError(t, os.Chmod(f.host("file"), 0o700))
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "two\nth", New: "2\nTH"}}})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesEditResult{
		Path: "file", Outcomes: []protocol.EditOutcome{{Replacements: 1, Line: 2}}, Replacements: 1, Bytes: 12, SHA256: digest("one\n2\nTHree\n"),
		Diff: "--- a/file\n+++ b/file\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\n+THree\n",
	}, got)
	require.Equal(t, "one\n2\nTHree\n", f.get(t, "file"))
	require.EqualValues(t, 0o700, f.mode(t, "file"))
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "one\n2\nTHree\n", New: ""}}})
	require.NoError(t, err)
	require.Empty(t, f.get(t, "file"))
}

func editAll(t *testing.T, f *tree) {
	f.put(t, "file", "a b a b a")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "a", New: "aa", ReplaceAll: true}}})
	require.NoError(t, err)
	require.Equal(t, 3, got.Replacements)
	require.Equal(t, "aa b aa b aa", f.get(t, "file"))
}

// refused checks that an edit fails and changes nothing, and returns the message.
func (f *tree) refused(t *testing.T, content string, edit protocol.FileEdit, code protocol.Code) string {
	t.Helper()
	f.put(t, "file", content)
	before, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{edit}})
	message := requireFault(t, err, code)
	require.Equal(t, content, f.get(t, "file"))
	after, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, []string{"file"}, f.names(t, ""))
	return message
}

func editNotFound(t *testing.T, f *tree) {
	const code = "func main() {\n\tif x {\n\t\treturn 1\n\t}\n}\n"
	for name, test := range map[string]struct{ content, old, new, hint string }{
		"indented otherwise":  {code, "    if x {\n        return 1\n", "", "line 2:\n\tif x {\n\t\treturn 1\n"},
		"almost the same":     {code, "return 2 ", "", "line 3:\n\t\treturn 1\n"},
		"made already":        {"one\n2\n", "two", "2", "at line 2"},
		"nothing like it":     {code, "quite another text", "", "read the file again"},
		"an empty file":       {"", "x", "", "read the file again"},
		"a blank line":        {"\n\n", " ", "", "read the file again"},
		"blank lines before":  {"a\nb\n\nc c c\n", "\n\n\nc c d\n", "", "c c c"},
		"a line that is long": {strings.Repeat("é", 1000), strings.Repeat("é", 999) + "x", "", "é"},
	} {
		message := f.refused(t, test.content, protocol.FileEdit{Old: test.old, New: test.new}, codes.EditNotFound)
		require.Contains(t, message, test.hint, name)
		require.Contains(t, message, "nothing was changed", name)
		require.Less(t, len(message), 2000, name)
	}
}

func editNotUnique(t *testing.T, f *tree) {
	message := f.refused(t, "x\ny\nx\nx x\n", protocol.FileEdit{Old: "x"}, codes.EditNotUnique)
	require.Contains(t, message, "4 times")
	require.Contains(t, message, "at lines 1, 3, 4, 4;")
	message = f.refused(t, "aaa", protocol.FileEdit{Old: "aa"}, codes.EditNotUnique)
	require.Contains(t, message, "2 times", "occurrences that overlap are not one")
	message = f.refused(t, strings.Repeat("x\n", 1000), protocol.FileEdit{Old: "x"}, codes.EditNotUnique)
	require.Contains(t, message, "1000 times")
	require.Less(t, len(message), 400)
}

func editArguments(t *testing.T, f *tree) {
	f.refused(t, "x", protocol.FileEdit{Old: "", New: "y"}, protocol.CodeInvalidArguments)
	f.refused(t, "", protocol.FileEdit{Old: "", New: "y"}, protocol.CodeInvalidArguments)
	f.refused(t, "x", protocol.FileEdit{Old: "x", New: "x"}, protocol.CodeInvalidArguments)
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "missing", Edits: []protocol.FileEdit{{Old: "x", New: "y"}}})
	requireFault(t, err, protocol.CodeNotFound)
	require.NoFileExists(t, f.host("missing"))
}

func editTooLarge(t *testing.T, f *tree) {
	f.refused(t, strings.Repeat("x", 10_000),
		protocol.FileEdit{Old: "x", New: strings.Repeat("y", 2000), ReplaceAll: true}, codes.TooLarge)
}

func editBytes(t *testing.T, f *tree) {
	f.refused(t, "\x7fELF\x00a", protocol.FileEdit{Old: "a", New: "b"}, codes.NotText)
	f.refused(t, "%PDF-1.7 a", protocol.FileEdit{Old: "a", New: "b"}, codes.NotText)
	f.put(t, "file", "\xff\x01a\r\nb")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "a", New: "ä"}}})
	require.NoError(t, err)
	require.Equal(t, "\xff\x01ä\r\nb", f.get(t, "file"))
	require.Empty(t, got.Diff)
}
