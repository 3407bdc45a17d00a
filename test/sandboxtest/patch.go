//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func patchTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"what is applied":             patchApplied,
		"what cannot be read":         patchUnreadable,
		"what does not fit":           patchRefused,
		"where hunks were applied":    patchOutcomes,
		"the mode stays, and links":   patchMode,
		"a file that is not there":    patchMissing,
		"a patch and texts":           patchAndTexts,
		"a patch that is too large":   patchTooLarge,
		"a file over the given limit": patchMaxSize,
	}
}

const ten = "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n"

// patchApplied is a table of what models send and what must come of it.
func patchApplied(t *testing.T, f *tree) {
	for name, test := range map[string]struct{ content, patch, want string }{
		"one line":                {"a\nb\nc\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", "a\nB\nc\n"},
		"file headers":            {"a\n", "diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "b\n"},
		"another file's name":     {"a\n", "--- a/other\n+++ b/other\n@@ -1 +1 @@\n-a\n+b\n", "b\n"},
		"no headers, no numbers":  {"a\nb\n", "@@\n a\n-b\n+c\n", "a\nc\n"},
		"a section heading":       {"a\nb\n", "@@ -1,2 +1,2 @@ func main() {\n a\n-b\n+c\n", "a\nc\n"},
		"line numbers far off":    {ten, "@@ -70,3 +70,3 @@\n 6\n-7\n+seven\n 8\n", strings.Replace(ten, "7", "seven", 1)},
		"counts that are wrong":   {ten, "@@ -6,9 +6,2 @@\n 6\n-7\n+seven\n 8\n", strings.Replace(ten, "7", "seven", 1)},
		"two hunks":               {ten, "@@ -1,2 +1,3 @@\n 1\n+1.5\n 2\n@@ -9,2 +10,1 @@\n 9\n-10\n", "1\n1.5\n2\n3\n4\n5\n6\n7\n8\n9\n"},
		"an empty context line":   {"a\n\nb\n", "@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n", "a\n\nc\n"},
		"blank lines behind it":   {"a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n\n\n", "a\nc\n"},
		"no line feed at its end": {"a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c", "a\nc\n"},
		"a code fence":            {"a\n", "```diff\n@@ -1 +1 @@\n-a\n+b\n```\n", "b\n"},
		"begin and end patch":     {"a\n", "*** Begin Patch\n*** Update File: x\n@@\n-a\n+b\n*** End Patch\n", "b\n"},

		"the file has no last line feed":      {"a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n+c\n", "a\nc"},
		"the same, and it is said":            {"a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n\\ No newline at end of file\n", "a\nc"},
		"one is added":                        {"a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n", "a\nb\n"},
		"one is taken away":                   {"a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n", "a\nb"},
		"lines behind a last one without":     {"a\nb", "@@ -2 +2,2 @@\n b\n+c\n", "a\nb\nc"},
		"the last line goes":                  {"a\nb", "@@ -1,2 +1 @@\n a\n-b\n", "a\n"},
		"context at an end without line feed": {"a\nb", "@@ -1,2 +1,2 @@\n-a\n+A\n b\n", "A\nb"},

		"CRLF file, LF patch":     {"a\r\nb\r\nc\r\n", "@@ -1,3 +1,4 @@\n a\n-b\n+B\n+B2\n c\n", "a\r\nB\r\nB2\r\nc\r\n"},
		"CRLF file, CRLF patch":   {"a\r\nb\r\n", "@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+B\r\n", "a\r\nB\r\n"},
		"LF file, CRLF patch":     {"a\nb\n", "@@ -1,2 +1,2 @@\r\n a\r\n-b\r\n+B\r\n", "a\nB\n"},
		"mixed line ends stay":    {"a\r\nb\nc\r\n", "@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n", "a\r\nB\nc\r\n"},
		"CRLF without a last one": {"a\r\nb", "@@ -1,2 +1,2 @@\n a\n-b\n+B\n", "a\r\nB"},

		"only additions, at a line":       {ten, "@@ -3,0 +4,2 @@\n+a\n+b\n", "1\n2\n3\na\nb\n4\n5\n6\n7\n8\n9\n10\n"},
		"only additions, at the top":      {"x\n", "@@ -0,0 +1 @@\n+a\n", "a\nx\n"},
		"only additions, at the end":      {"x\n", "@@ -1,0 +2 @@\n+a\n", "x\na\n"},
		"only additions, to no line feed": {"x", "@@ -1,0 +2 @@\n+a\n", "x\na"},
		"into an empty file":              {"", "@@ -0,0 +1,2 @@\n+a\n+b\n", "a\nb\n"},
		"into an empty file, no numbers":  {"", "@@\n+a\n", "a\n"},
		"all of it goes":                  {"a\nb\n", "@@ -1,2 +0,0 @@\n-a\n-b\n", ""},
		"a blank line goes":               {"a\n\nb\n", "@@ -1,3 +1,2 @@\n a\n-\n b\n", "a\nb\n"},
		"a blank line comes":              {"a\nb\n", "@@ -1,2 +1,3 @@\n a\n+\n b\n", "a\n\nb\n"},

		"the place that the header says, of several": {"x\ny\nx\ny\n", "@@ -3,2 +3,2 @@\n x\n-y\n+z\n", "x\ny\nx\nz\n"},
		"the place behind the hunk before":           {"x\ny\nx\ny\n", "@@ -1,2 +1,2 @@\n x\n-y\n+z\n@@\n x\n-y\n+w\n", "x\nz\nx\nw\n"},
		"all hunks are off by the same":              {"new\n" + ten + ten, "@@ -2,2 +2,2 @@\n 2\n-3\n+three\n@@ -5,2 +5,2 @@\n 5\n-6\n+six\n", ""},
		"a removed line that looks like a header":    {"-- a\nb\n", "@@ -1,2 +1,2 @@\n--- a\n+-- A\n b\n", "-- A\nb\n"},
		"an added line that looks like a header":     {"a\n", "@@ -1 +1,2 @@\n a\n+++ b\n", "a\n++ b\n"},
		"a line that looks like a hunk":              {"@@ -1 +1 @@\na\n", "@@ -1,2 +1,2 @@\n @@ -1 +1 @@\n-a\n+b\n", "@@ -1 +1 @@\nb\n"},
		"characters of several bytes":                {"ä\n漢\n", "@@ -1,2 +1,2 @@\n ä\n-漢\n+字\n", "ä\n字\n"},
		"bytes that are no text":                     {"\xff\nb\n", "@@ -1,2 +1,2 @@\n \xff\n-b\n+\x00\n", "\xff\n\x00\n"},
	} {
		if name == "all hunks are off by the same" {
			// The first hunk's lines are twice in the file, so its place cannot be told.
			message := f.patchRefused(t, test.content, test.patch, codes.EditNotUnique)
			require.Contains(t, message, "2 times")
			continue
		}
		f.put(t, "file", test.content)
		_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: test.patch})
		require.NoError(t, err, name)
		require.Equal(t, test.want, f.get(t, "file"), name)
	}
}

// patchRefused checks that a patch fails and changes nothing, and returns the message.
func (f *tree) patchRefused(t *testing.T, content, patch string, code protocol.Code) string {
	t.Helper()
	f.put(t, "file", content)
	before, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: patch})
	message := requireFault(t, err, code)
	require.Equal(t, content, f.get(t, "file"))
	after, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Contains(t, message, "nothing was changed")
	require.Less(t, len(message), 2500)
	return message
}

func patchUnreadable(t *testing.T, f *tree) {
	for patch, want := range map[string]string{
		"   \n\n":                           "there is no hunk in it",
		"hello":                             `"hello" is neither a header nor part of a hunk (line 1`,
		"--- a/x\n+++ b/x\n":                "there is no hunk in it",
		"@@ -1 +1 @@\n":                     "changes nothing",
		"@@ -1 +1 @@\n a\n":                 "changes nothing (line 1",
		"@@ -1 +1 @@\n-a\n+b\nsome words\n": `"some words" does not start with " ", "-" or "+" (line 4`,
		"-a\n+b\n":                          "neither a header",
		"--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n":                  "it deletes the file",
		"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n":                  "it makes a new file",
		"@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-c\n+d\n": "lines for another file",
		"@@ -99999999999999999999 +1 @@\n-a\n+b\n":                     "is too large",
		"\x00\x01\x02":                       "neither a header",
		strings.Repeat("@@\n-a\n+b\n", 1001): "more than 1000 hunks",
	} {
		message := f.patchRefused(t, "a\n", patch, codes.InvalidPatch)
		require.Contains(t, message, want, "%.80q", patch)
	}
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file"})
	requireFault(t, err, codes.InvalidPatch)
}

func patchRefused(t *testing.T, f *tree) {
	const code = "func main() {\n\tone()\n\ttwo()\n}\n"
	for name, test := range map[string]struct {
		content, patch string
		code           protocol.Code
		says           []string
	}{
		"context that differs": {
			code, "@@ -1,3 +1,3 @@\n func main() {\n-\tone(1)\n+\tONE()\n \ttwo()\n", codes.EditNotFound,
			[]string{"hunk 1 of 1", "line 1", `the patch has "\tone(1)"`, "func main() {\n\tone()\n"},
		},
		"white space that differs": {
			code, "@@ -2,2 +2,2 @@\n-    one()\n+    ONE()\n \ttwo()\n", codes.EditNotFound, []string{"line 2", "one()"},
		},
		"nothing like it": {code, "@@ -1 +1 @@\n-quite another\n+x\n", codes.EditNotFound, []string{"read the file again"}},
		"the second hunk": {
			ten, "@@ -2 +2 @@\n-2\n+two\n@@ -5 +5 @@\n-five\n+V\n", codes.EditNotFound, []string{"hunk 2 of 2"},
		},
		"hunks in the wrong order": {
			ten, "@@ -8 +8 @@\n-8\n+eight\n@@ -2 +2 @@\n-2\n+two\n", codes.EditNotFound, []string{"hunk 2 of 2"},
		},
		"several places, none at the line": {
			"x\ny\nx\ny\n", "@@ -2,2 +2,2 @@\n x\n-y\n+z\n", codes.EditNotUnique, []string{"2 times", "at lines 1, 3"},
		},
		"additions behind the end":  {ten, "@@ -99,0 +100 @@\n+x\n", codes.EditNotFound, []string{"which has 10"}},
		"additions without a place": {ten, "@@\n+x\n", codes.EditNotFound, []string{"give lines of context"}},
	} {
		message := f.patchRefused(t, test.content, test.patch, test.code)
		for _, says := range test.says {
			require.Contains(t, message, says, name)
		}
	}
}

func patchOutcomes(t *testing.T, f *tree) {
	f.put(t, "file", ten)
	got, err := f.Edit(t.Context(), protocol.FilesEdit{
		Path: "file", Patch: "@@ -1,2 +1,4 @@\n 1\n+a\n+b\n 2\n@@ -3,3 +5,3 @@\n 5\n-6\n+six\n 7\n@@ -10 +10 @@\n-10\n+ten\n",
	})
	require.NoError(t, err)
	require.Equal(t, []protocol.EditOutcome{
		{Replacements: 1, Line: 2}, {Replacements: 1, Line: 8, Offset: 2}, {Replacements: 1, Line: 12},
	}, got.Outcomes)
	require.Equal(t, 3, got.Replacements)
	require.Equal(t, "1\na\nb\n2\n3\n4\n5\nsix\n7\n8\n9\nten\n", f.get(t, "file"))
	require.Equal(t, digest(f.get(t, "file")), got.SHA256)
	require.Contains(t, got.Diff, "+six\n")
}

func patchMode(t *testing.T, f *tree) {
	f.put(t, "real", "a\n")
	require.NoError(t, os.Chmod(f.host("real"), 0o750))
	f.link(t, "real", "link")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "link", Patch: "@@ -1 +1 @@\n-a\n+b\n"})
	require.NoError(t, err)
	require.Equal(t, "b\n", f.get(t, "real"))
	require.EqualValues(t, 0o750, f.mode(t, "real"))
	require.NotZero(t, f.mode(t, "link")&os.ModeSymlink)
}

func patchMissing(t *testing.T, f *tree) {
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "dir/missing", Patch: "@@ -1 +1 @@\n-a\n+b\n"})
	requireFault(t, err, protocol.CodeNotFound)
	require.Empty(t, f.names(t, ""))
}

func patchAndTexts(t *testing.T, f *tree) {
	f.put(t, "file", "a\n")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{
		Path: "file", Patch: "@@ -1 +1 @@\n-a\n+b\n", Edits: []protocol.FileEdit{{Old: "a", New: "c"}},
	})
	requireFault(t, err, codes.InvalidPayload)
	require.Equal(t, "a\n", f.get(t, "file"))
}

func patchTooLarge(t *testing.T, f *tree) {
	f.put(t, "file", "a\n")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: strings.Repeat("x", isolation.MaxPatch+1)})
	requireFault(t, err, codes.TooLarge)
	f.put(t, "file", strings.Repeat("x", isolation.MaxFileSize-2)+"\n")
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@ -1,0 +2 @@\n+yy\n"})
	requireFault(t, err, codes.TooLarge)
}

func patchMaxSize(t *testing.T, f *tree) {
	f.put(t, "file", "12345\n")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@ -1 +1 @@\n-12345\n+1\n", MaxBytes: 5})
	requireFault(t, err, codes.TooLarge)
	_, err = f.Read(t.Context(), protocol.FilesRead{Path: "file", MaxBytes: 5})
	require.Contains(t, requireFault(t, err, codes.TooLarge), "at most 5")
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@ -1 +1 @@\n-12345\n+1\n", MaxBytes: 6})
	require.NoError(t, err)
}
