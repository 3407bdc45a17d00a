//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func readTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"lines":                 readLines,
		"more than fits":        readLong,
		"one line does not fit": readLongLine,
		"bytes at a place":      readAt,
		"binary":                readBinary,
		"too large":             readTooLarge,
		"large":                 readLarge,
		"images":                readImages,
	}
}

// digest is the SHA-256 of a text in hex.
func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func readLines(t *testing.T, f *tree) {
	const text = "one\r\ntwo\n\nfour"
	f.put(t, "file", text)
	f.put(t, "empty", "")
	f.put(t, "ended", "one\n")
	for _, test := range []struct {
		req  protocol.FilesRead
		want protocol.FilesReadResult
	}{
		{protocol.FilesRead{Path: "file"}, protocol.FilesReadResult{Content: []byte(text), FirstLine: 1, Lines: 4}},
		{protocol.FilesRead{Path: "file", Offset: -5, Limit: -5}, protocol.FilesReadResult{Content: []byte(text), FirstLine: 1, Lines: 4}},
		{protocol.FilesRead{Path: "file", Limit: 1}, protocol.FilesReadResult{Content: []byte("one\r\n"), FirstLine: 1, Lines: 1}},
		{protocol.FilesRead{Path: "file", Offset: 2, Limit: 2}, protocol.FilesReadResult{Content: []byte("two\n\n"), FirstLine: 2, Lines: 2}},
		{protocol.FilesRead{Path: "file", Offset: 4, Limit: 9}, protocol.FilesReadResult{Content: []byte("four"), FirstLine: 4, Lines: 1}},
		{protocol.FilesRead{Path: "file", Offset: 5}, protocol.FilesReadResult{}},
		{protocol.FilesRead{Path: "empty"}, protocol.FilesReadResult{}},
		{protocol.FilesRead{Path: "ended"}, protocol.FilesReadResult{Content: []byte("one\n"), FirstLine: 1, Lines: 1}},
		{protocol.FilesRead{Path: "ended", Offset: 2}, protocol.FilesReadResult{}},
	} {
		whole := f.get(t, test.req.Path)
		test.want.Path, test.want.SHA256 = test.req.Path, digest(whole)
		test.want.Bytes = int64(len(whole))
		test.want.TotalLines = map[string]int{"file": 4, "empty": 0, "ended": 1}[test.req.Path]
		if test.req.Path == "file" {
			test.want.LineEnds = "mixed"
		}
		got, err := f.Read(t.Context(), test.req)
		require.NoError(t, err)
		require.Equal(t, test.want, got, "%+v", test.req)
	}
}

func readLong(t *testing.T, f *tree) {
	line := strings.Repeat("ü", 500) + "\n" // 1001 bytes
	f.put(t, "file", strings.Repeat(line, 1000))
	fits := isolation.MaxReadBytes / len(line)
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err)
	require.True(t, got.Truncated)
	require.Equal(t, fits, got.Lines)
	require.Equal(t, 1000, got.TotalLines)
	require.Equal(t, strings.Repeat(line, fits), string(got.Content))
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "file", Offset: 900})
	require.NoError(t, err)
	require.False(t, got.Truncated)
	require.Equal(t, 101, got.Lines)
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "file", Limit: fits})
	require.NoError(t, err)
	require.False(t, got.Truncated, "all the lines that were asked for are there")
}

func readLongLine(t *testing.T, f *tree) {
	f.put(t, "file", "short\nxx"+strings.Repeat("漢", isolation.MaxReadBytes)+"\nend\n")
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Offset: 2, Limit: 1})
	require.NoError(t, err)
	require.True(t, got.Truncated)
	require.Equal(t, 1, got.Lines)
	require.Equal(t, 2, got.FirstLine)
	require.True(t, utf8.Valid(got.Content))
	require.LessOrEqual(t, len(got.Content), isolation.MaxReadBytes)
	require.Greater(t, len(got.Content), isolation.MaxReadBytes-4)
	require.EqualValues(t, 2+3*isolation.MaxReadBytes, got.LineBytes, "the whole line")
	require.Equal(t, 3, got.TotalLines)
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err)
	require.Equal(t, "short\n", string(got.Content))
	require.True(t, got.Truncated)
}

// readAt: a file comes whole in pieces, whatever is in it.
func readAt(t *testing.T, f *tree) {
	content := strings.Repeat("\x00\xff\n", isolation.MaxChunk) // three pieces
	f.put(t, "file", content)
	var all strings.Builder
	for {
		got, err := f.ReadAt(t.Context(), "file", int64(all.Len()), 0)
		require.NoError(t, err)
		if len(got) == 0 {
			break
		}
		require.LessOrEqual(t, len(got), isolation.MaxChunk)
		all.Write(got)
	}
	require.Equal(t, digest(content), digest(all.String()))
	got, err := f.ReadAt(t.Context(), "file", 1, 2)
	require.NoError(t, err)
	require.Equal(t, "\xff\n", string(got))
	f.put(t, "dir/x", "")
	f.link(t, "/etc/passwd", "out")
	for path, code := range map[string]protocol.Code{
		"none": protocol.CodeNotFound, "dir": codes.IsDirectory, "out": codes.PathEscape, "../x": codes.PathEscape,
	} {
		_, err := f.ReadAt(t.Context(), path, 0, 0)
		requireFault(t, err, code)
	}
}

func readBinary(t *testing.T, f *tree) {
	large := strings.Repeat("\x00\n", isolation.MaxReadBytes)
	for name, content := range map[string]string{"nul": "a\n\x00b\n", "a bad byte": "gr\xfcße süß\n", "a control": "gr\xfcn\x01", "large": large} {
		f.put(t, name, content)
		got, err := f.Read(t.Context(), protocol.FilesRead{Path: name, Offset: 2})
		require.NoError(t, err)
		require.True(t, got.Binary)
		require.Zero(t, got.Lines)
		require.Zero(t, got.TotalLines)
		require.EqualValues(t, len(content), got.Bytes)
		require.Equal(t, digest(content), got.SHA256)
		require.Equal(t, content[:min(len(content), isolation.MaxReadBytes)], string(got.Content))
		require.Equal(t, len(content) > isolation.MaxReadBytes, got.Truncated)
	}
}

func readTooLarge(t *testing.T, f *tree) {
	f.put(t, "file", "")
	require.NoError(t, os.Truncate(f.host("file"), isolation.MaxFileSize+1))
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err, "what is too large to be edited can be read")
	require.True(t, got.Binary)
	require.EqualValues(t, isolation.MaxFileSize+1, got.Bytes)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{{Old: "a", New: "b"}}})
	requireFault(t, err, codes.TooLarge)
	require.NoError(t, os.Truncate(f.host("file"), isolation.MaxReadSize+1))
	_, err = f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	requireFault(t, err, codes.TooLarge)
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 0)
	require.NoError(t, err)
	require.Equal(t, protocol.FilesSearchResult{Matches: []protocol.Match{}, Skipped: 1, SkippedPaths: []string{"file"}}, result)
}

func listTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"entries are sorted and typed": listEntries,
		"more than fit":                listMany,
		"nothing":                      listEmpty,
	}
}

func listEntries(t *testing.T, f *tree) {
	f.put(t, "b.txt", "123")
	f.put(t, "a/file", "")
	f.put(t, ".hidden", "")
	f.link(t, "/nowhere", "c")
	got, err := f.List(t.Context(), protocol.FilesList{})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesListResult{Total: 4, Entries: []protocol.DirEntry{
		{Name: ".hidden", Type: protocol.TypeFile},
		{Name: "a", Type: protocol.TypeDir},
		{Name: "b.txt", Type: protocol.TypeFile, Size: 3},
		{Name: "c", Type: protocol.TypeSymlink},
	}}, got)
}

func listMany(t *testing.T, f *tree) {
	const n = 5000 // several reads of the directory
	names := make([]string, 0, n)
	for i := range n {
		name := strings.Repeat("x", i%7) + string(rune('a'+i%26)) + digest(string(rune(i)))[:8]
		names = append(names, name)
		f.put(t, name, "")
	}
	slices.Sort(names)
	got, err := f.List(t.Context(), protocol.FilesList{})
	require.NoError(t, err)
	require.Equal(t, n, got.Total)
	require.Len(t, got.Entries, n)
	for i, entry := range got.Entries {
		require.Equal(t, names[i], entry.Name)
	}
}

func listEmpty(t *testing.T, f *tree) {
	got, err := f.List(t.Context(), protocol.FilesList{})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesListResult{Entries: []protocol.DirEntry{}}, got)
}

func readLarge(t *testing.T, f *tree) {
	line := strings.Repeat("ü", 40) + "\n" // 81 bytes
	f.put(t, "file", strings.Repeat(line, isolation.MaxFileSize/len(line)+10))
	whole := f.get(t, "file")
	lines := len(whole) / len(line)
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Offset: lines - 1, Limit: 5})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesReadResult{
		Path: "file", Content: []byte(line + line), FirstLine: lines - 1, Lines: 2, TotalLines: lines, Bytes: int64(len(whole)), SHA256: digest(whole),
	}, got)
	f.put(t, "late", strings.Repeat("a", 300_000)+"\né\xc3é")
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "late"})
	require.NoError(t, err)
	require.True(t, got.Binary, "half a character at the end")
	f.put(t, "nul", strings.Repeat("a\n", 300_000)+"\x00")
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "nul"})
	require.NoError(t, err)
	require.True(t, got.Binary)
}

func readImages(t *testing.T, f *tree) {
	for content, want := range map[string]string{
		"\x89PNG\r\n\x1a\n....":            "image/png",
		"\xff\xd8\xff\xe0....":             "image/jpeg",
		"GIF89a....":                       "image/gif",
		"RIFF\x00\x00\x00\x00WEBPVP8 ....": "image/webp",
		"%PDF-1.7\n....":                   "application/pdf",
		"\x89PNG\x00":                      "",
		"RIFF\x00\x00\x00\x00WAVEfmt ":     "",
	} {
		f.put(t, "file", content)
		got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file", Offset: 3})
		require.NoError(t, err)
		require.Equal(t, want, got.Image, "%q", content)
		require.True(t, got.Binary)
		require.Equal(t, content, string(got.Content))
	}
	f.put(t, "file", "\x89PNG\r\n\x1a\n"+strings.Repeat("x", isolation.MaxImageSize-8))
	got, err := f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err)
	require.Len(t, got.Content, isolation.MaxImageSize)
	require.False(t, got.Truncated)
	f.put(t, "file", f.get(t, "file")+"x")
	got, err = f.Read(t.Context(), protocol.FilesRead{Path: "file"})
	require.NoError(t, err)
	require.True(t, got.Truncated)
}
