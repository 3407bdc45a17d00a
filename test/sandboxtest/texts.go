//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"encoding/binary"
	"os"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func textTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"encodings":               textEncodings,
		"an encoding that lacks":  textLacks,
		"a byte order mark":       textMark,
		"a mark of a whole file":  textMarkWritten,
		"line ends of an edit":    textLineEnds,
		"line ends of JSON":       textLineEndsJSON,
		"line ends are told":      textLineEndsTold,
		"hard links":              textLinks,
		"patterns without a line": textNoLine,
		"a carriage return":       textReturn,
		"brackets in names":       textBrackets,
	}
}

// utf16Of is a text in UTF-16 with a byte order mark.
func utf16Of(order binary.AppendByteOrder, text string) string {
	out := order.AppendUint16(nil, 0xFEFF)
	for _, unit := range utf16.Encode([]rune(text)) {
		out = order.AppendUint16(out, unit)
	}
	return string(out)
}

// textEncodings: text in another encoding is read, searched and changed as text, and what is not
// changed stays as it is to the byte.
func textEncodings(t *testing.T, f *tree) {
	const chinese = "// \xd6\xd0\xce\xc4\xd7\xa2\xca\xcd\xa3\xba\r\nint main; // \xd6\xd0\r\n"
	for name, test := range map[string]struct{ content, encoding, text, old, changed, after string }{
		"UTF-16LE": {
			utf16Of(binary.LittleEndian, "grün 漢 😀\nzwei\n"), "UTF-16LE", "grün 漢 😀\nzwei\n",
			"grün 漢", "rot 字", utf16Of(binary.LittleEndian, "rot 字 😀\nzwei\n"),
		},
		"UTF-16BE": {
			utf16Of(binary.BigEndian, "grün\r\nzwei\r\n"), "UTF-16BE", "grün\r\nzwei\r\n",
			"grün\nz", "rot\nx", utf16Of(binary.BigEndian, "rot\r\nxwei\r\n"),
		},
		"GBK": {
			chinese, "GBK", "// 中文注释：\r\nint main; // 中\r\n",
			"中文注释", "汉字", "// \xba\xba\xd7\xd6\xa3\xba\r\nint main; // \xd6\xd0\r\n",
		},
		"ISO-8859-1":   {"gr\xfc\xdfe, caf\xe9 M\xfc\xdfig\n", "ISO-8859-1", "grüße, café Müßig\n", "café", "thé", "gr\xfc\xdfe, th\xe9 M\xfc\xdfig\n"},
		"Windows-1252": {"10 \x80 \x96 caf\xe9\n", "Windows-1252", "10 € – café\n", "10 €", "€ 11", "\x80 11 \x96 caf\xe9\n"},
	} {
		f.put(t, "file", test.content)
		got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
		require.NoError(t, err, name)
		require.False(t, got.Binary, name)
		require.Equal(t, test.text, string(got.Content), name)
		require.Equal(t, test.encoding, got.Encoding, name)
		require.Equal(t, strings.HasPrefix(name, "UTF-16"), got.BOM, name)
		require.Equal(t, strings.Count(test.text, "\n"), got.TotalLines, name)
		require.EqualValues(t, len(test.content), got.Bytes, name)
		require.Equal(t, digest(test.content), got.SHA256, name)
		raw, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Raw: true})
		require.NoError(t, err, name)
		require.Equal(t, test.content, string(raw.Content), name)
		require.Empty(t, raw.Encoding, name)

		first, _, _ := strings.Cut(test.old, "\n")
		for _, path := range []string{"", "file"} {
			found, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: first, Path: path}, 0)
			require.NoError(t, err, name)
			require.Equal(t, 1, found.Total, name)
			require.Equal(t, 1, found.Files, name)
			require.Contains(t, found.Matches[0].Text, first, name)
		}

		edited, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: test.old, New: test.changed}}})
		require.NoError(t, err, name)
		require.Equal(t, test.after, f.get(t, "file"), name)
		require.Equal(t, digest(test.after), edited.SHA256, name)
		require.Contains(t, edited.Diff, first, name)
		line, _, _ := strings.Cut(test.text, "\n")
		f.put(t, "file", test.content)
		_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@ -1 +1 @@\n-" + strings.TrimSuffix(line, "\r") + "\n+new\n"})
		require.NoError(t, err, name)
		got, err = f.Read(t.Context(), protocol.FilesRead{Path: "file", Limit: 1})
		require.NoError(t, err, name)
		require.Equal(t, "new", strings.TrimRight(string(got.Content), "\r\n"), name)
		require.Empty(t, strings.Trim(got.Encoding, test.encoding), name)
	}
	for name, content := range map[string]string{
		"half a unit":       utf16Of(binary.LittleEndian, "ab") + "c",
		"half a pair":       "\xff\xfe\x00\xd8a\x00",
		"UTF-32":            "\xff\xfe\x00\x00a\x00\x00\x00",
		"UTF-16 with NUL":   utf16Of(binary.BigEndian, "a\x00b"),
		"cyrillic":          "\xef\xf0\xe8\xe2\xe5\xf2 \xec\xe8\xf0\n",
		"UTF-8 but a byte":  "grüße \xff süß\n",
		"bytes and control": "\xe9a\x02b\n",
	} {
		f.put(t, "file", content)
		got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
		require.NoError(t, err, name)
		require.True(t, got.Binary, name)
		require.Equal(t, content, string(got.Content), name)
	}
}

func textLacks(t *testing.T, f *tree) {
	f.put(t, "file", "caf\xe9\n")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "café", New: "茶"}}})
	message := requireFault(t, err, protocol.CodeInvalidArguments)
	require.Contains(t, message, "ISO-8859-1")
	require.Equal(t, "caf\xe9\n", f.get(t, "file"))
}

// textMark: a byte order mark is not text, and is kept.
func textMark(t *testing.T, f *tree) {
	const mark = "\uFEFF"
	content := mark + "using System;\nclass A {}\n"
	f.put(t, "file", content)
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err)
	require.Equal(t, content[len(mark):], string(got.Content))
	require.True(t, got.BOM)
	require.Empty(t, got.Encoding)
	require.EqualValues(t, len(content), got.Bytes)
	raw, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Raw: true})
	require.NoError(t, err)
	require.Equal(t, content, string(raw.Content))
	require.Equal(t, []string{"file:1:using System;"}, f.found(t, protocol.FilesSearch{Pattern: "^using"}))

	edited, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@ -1 +1 @@\n-using System;\n+using Other;\n"})
	require.NoError(t, err)
	require.NotContains(t, edited.Diff, mark)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "using Other;\nclass A", New: "class B"}}})
	require.NoError(t, err)
	require.Equal(t, mark+"class B {}\n", f.get(t, "file"))

	f.put(t, "doc.json", mark+"{\"a\": 1}\n")
	value, err := f.ReadJSON(t.Context(), protocol.FilesJSONRead{Path: "doc.json", Query: "/a"})
	require.NoError(t, err)
	require.Equal(t, "1", string(value.Value))
	_, err = f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: "/a", Content: []byte("2")})
	require.NoError(t, err)
	require.Equal(t, mark+"{\"a\": 2}\n", f.get(t, "doc.json"))
	f.put(t, "doc.json", utf16Of(binary.LittleEndian, `{"a": 1}`))
	_, err = f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: "/a", Content: []byte(`"漢"`)})
	require.NoError(t, err)
	require.Equal(t, utf16Of(binary.LittleEndian, `{"a": "漢"}`), f.get(t, "doc.json"))
}

// textMarkWritten: who writes a whole file has read it without its mark.
func textMarkWritten(t *testing.T, f *tree) {
	const mark = "\uFEFF"
	for name, test := range map[string]struct{ before, content, want string }{
		"UTF-8":             {mark + "a", "b", mark + "b"},
		"a mark of its own": {mark + "a", mark + "b", mark + "b"},
		"no text":           {mark + "a", "b\x00", "b\x00"},
		"UTF-16":            {utf16Of(binary.BigEndian, "a"), "漢", utf16Of(binary.BigEndian, "漢")},
		"no mark":           {"a", "b", "b"},
		"Latin-1":           {"caf\xe9", "thé", "thé"},
	} {
		f.put(t, "file", test.before)
		for range 2 {
			got, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte(test.content)})
			require.NoError(t, err, name)
			require.Equal(t, test.want, f.get(t, "file"), name)
			require.Equal(t, digest(test.want), got.SHA256, name)
			require.EqualValues(t, len(test.want), got.Bytes, name)
		}
	}
}

// textLineEnds: line ends are not compared, and the file keeps its own.
func textLineEnds(t *testing.T, f *tree) {
	for name, test := range map[string]struct{ content, old, changed, want string }{
		"lines added":        {"one\r\ntwo\r\n", "one", "1\n1b", "1\r\n1b\r\ntwo\r\n"},
		"lines found":        {"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", "1\r\n2\r\nthree\r\n"},
		"both say CRLF":      {"one\r\ntwo\r\n", "one\r\ntwo", "1\r\n2", "1\r\n2\r\n"},
		"a file of LF":       {"one\ntwo\n", "one\r\ntwo", "1\r\n2", "1\n2\n"},
		"at the end":         {"one\r\ntwo", "two", "2\n3", "one\r\n2\r\n3"},
		"one line":           {"one", "one", "1\n2", "1\n2"},
		"removed":            {"one\r\ntwo\r\n", "one\n", "", "two\r\n"},
		"mixed, LF around":   {"a\r\nb\nc\r\n", "b", "1\n2", "a\r\n1\n2\nc\r\n"},
		"mixed, CRLF around": {"a\nb\r\nc\n", "b", "1\n2", "a\n1\r\n2\r\nc\n"},
		"mixed, lines that stay": {
			"a\nb\r\nc\nd\r\n", "a\nb\nc\nd\n", "a\nb\nnew\nc\nd\n", "a\nb\r\nnew\nc\nd\r\n",
		},
		"from CRLF to LF":     {"a\r\nb\r\n", "a\r\nb\r\n", "a\nb\n", "a\nb\n"},
		"from LF to CRLF":     {"a\nb\n", "a\nb\n", "a\r\nb\r\n", "a\r\nb\r\n"},
		"a return of its own": {"a\rb\r\nc\r\n", "a\rb", "x\ny", "x\ny\r\nc\r\n"},
		"half of a line end":  {"a\r\nb\r\n", "a\r", "a", "a\nb\r\n"},
	} {
		f.put(t, "file", test.content)
		_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: test.old, New: test.changed}}})
		require.NoError(t, err, name)
		require.Equal(t, test.want, f.get(t, "file"), name)
	}
	f.put(t, "file", "x\r\ny\r\nx\ny\nx\r\n")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "x\ny", New: "1\n2\n3", ReplaceAll: true}}})
	require.NoError(t, err)
	require.Equal(t, 2, got.Replacements)
	require.Equal(t, "1\r\n2\r\n3\r\n1\n2\n3\nx\r\n", f.get(t, "file"))
	message := f.refused(t, "x\r\ny\r\nx\ny\n", protocol.FileEdit{Old: "x\ny", New: "z"}, codes.EditNotUnique)
	require.Contains(t, message, "at lines 1, 3;")
	f.put(t, "file", "a\r\nb\r\n")
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "a", New: "1\n2"}, {Old: "2\nb", New: "2\n3"}}})
	require.NoError(t, err)
	require.Equal(t, "1\r\n2\r\n3\r\n", f.get(t, "file"))
}

func textLineEndsJSON(t *testing.T, f *tree) {
	const document = "{\r\n  \"a\": {\r\n    \"b\": 1\r\n  }\r\n}\r\n"
	for query, want := range map[string]string{
		"/a":   "{\r\n  \"a\": {\r\n    \"x\": [\r\n      1\r\n    ]\r\n  }\r\n}\r\n",
		"/a/c": "{\r\n  \"a\": {\r\n    \"b\": 1,\r\n    \"c\": {\r\n      \"x\": [\r\n        1\r\n      ]\r\n    }\r\n  }\r\n}\r\n",
		"":     "{\r\n  \"x\": [\r\n    1\r\n  ]\r\n}\r\n",
	} {
		f.put(t, "doc.json", document)
		_, err := f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "doc.json", Query: query, Content: []byte(`{"x": [1]}`)})
		require.NoError(t, err)
		require.Equal(t, want, f.get(t, "doc.json"), query)
	}
}

func textLineEndsTold(t *testing.T, f *tree) {
	for content, want := range map[string]string{
		"a\r\nb\r\n": "CRLF", "a\r\nb": "CRLF", "a\nb\r\n": "mixed", "a\nb": "", "a": "", "": "", "a\rb": "",
		strings.Repeat("x", 128<<10-1) + "\r\n": "CRLF", // the pieces of a file are cut there
	} {
		f.put(t, "file", content)
		got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Limit: 1})
		require.NoError(t, err)
		require.Equal(t, want, got.LineEnds, "%.20q", content)
	}
}

// textLinks: a file with several names is replaced under one of them, and that is told.
func textLinks(t *testing.T, f *tree) {
	f.put(t, "file", "old\n")
	require.NoError(t, os.Link(f.host("file"), f.host("other")))
	edited, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "old", New: "new"}}})
	require.NoError(t, err)
	require.Equal(t, 1, edited.Links)
	require.Equal(t, "old\n", f.get(t, "other"))
	edited, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "new", New: "newer"}}})
	require.NoError(t, err)
	require.Zero(t, edited.Links)
	require.NoError(t, os.Link(f.host("file"), f.host("third")))
	written, err := f.Write(t.Context(), protocol.FilesWrite{Path: "third", Content: []byte("x")})
	require.NoError(t, err)
	require.Equal(t, 1, written.Links)
}

// textNoLine: a pattern that no line can match is refused, and not searched for in vain.
func textNoLine(t *testing.T, f *tree) {
	f.put(t, "file", "a\nb $user ^x\n")
	for pattern, want := range map[string]string{
		`a\nb`: `has no \n`, "a\nb": `has no \n`, `(?s)a\r?\nb|\n`: `has no \n`, `a[\n]b`: `has no \n`, `(a\n)+`: `has no \n`,
		`$user`: `put a \`, `(x|y)$z`: `put a \`, `b ^x`: `put a \`, `^a$b|$c`: `put a \`,
	} {
		_, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: pattern}, 0)
		require.Contains(t, requireFault(t, err, codes.InvalidPattern), want, pattern)
	}
	for _, pattern := range []string{`a\n?`, `a|\n`, `a\s*`, `[^x]$`, `^^a$$`, `$|a`, `a(\n)*`, `x?^a`, `a$()`, `(?m)a$`} {
		require.NotEmpty(t, f.found(t, protocol.FilesSearch{Pattern: pattern}), pattern)
	}
}

func textReturn(t *testing.T, f *tree) {
	f.put(t, "file", "one\r\ntwo\nthree\r\n")
	require.Equal(t, []string{"file:1:one", "file:3:three"}, f.found(t, protocol.FilesSearch{Pattern: `\r$`}))
	require.Equal(t, []string{"file:1:one", "file:3:three"}, f.found(t, protocol.FilesSearch{Pattern: `e$`}))
}

// textBrackets: names that exist with brackets are meant by patterns with brackets, and otherwise
// brackets are a class of characters.
func textBrackets(t *testing.T, f *tree) {
	for _, name := range []string{"app/[slug]/page.tsx", "app/[slug]/x/y.ts", "app/s/page.tsx", "app/[[...all]]/page.tsx", "lib/a.go", "lib/b.go"} {
		f.put(t, name, "hit\n")
	}
	for pattern, want := range map[string][]string{
		"app/[slug]/page.tsx":         {"app/[slug]/page.tsx"},
		"/workspace/app/[slug]/*.tsx": {"app/[slug]/page.tsx"},
		"app/[slug]/**":               {"app/[slug]/page.tsx", "app/[slug]/x/y.ts"},
		"**/[slug]/page.{tsx,jsx}":    {"app/[slug]/page.tsx"},
		"app/[[...all]]/page.tsx":     {"app/[[...all]]/page.tsx"},
		`app/[s]/page.tsx`:            {"app/s/page.tsx"},
		`lib/[ab].go`:                 {"lib/a.go", "lib/b.go"},
		`app/\[slug\]/page.tsx`:       {"app/[slug]/page.tsx"},
	} {
		got, err := f.Glob(t.Context(), protocol.FilesGlob{Pattern: pattern})
		require.NoError(t, err, pattern)
		require.Equal(t, want, got.Paths, pattern)
		found := []string{}
		searched, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit", Glob: pattern}, 0)
		require.NoError(t, err, pattern)
		for _, match := range searched.Matches {
			found = append(found, match.Path)
		}
		require.Equal(t, want, found, pattern)
	}
	got, err := f.Glob(t.Context(), protocol.FilesGlob{Pattern: "[slug]/page.tsx", Path: "app"})
	require.NoError(t, err)
	require.Equal(t, []string{"app/[slug]/page.tsx"}, got.Paths)
}
