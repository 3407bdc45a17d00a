//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func searchTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"matches are sorted by path and line": searchSorted,
		"globs":                               searchGlobs,
		"lines":                               searchLines,
		"what is skipped":                     searchSkipped,
		"what was asked for by name":          searchNamed,
		"a bad pattern":                       searchBadPattern,
		"more matches than fit":               searchMany,
		"more text than fits":                 searchMuch,
		"no more patience":                    searchPatience,
		"a deep tree":                         searchDeep,
		"a cancel in between":                 searchCancel,
	}
}

// found are the matches as "path:line:text".
func (f *tree) found(t *testing.T, req protocol.FilesSearch) []string {
	t.Helper()
	result, err := f.Search(t.Context(), req, 0)
	require.NoError(t, err)
	out := []string{}
	for _, m := range result.Matches {
		out = append(out, fmt.Sprintf("%s:%d:%s", m.Path, m.Line, m.Text))
	}
	return out
}

func searchSorted(t *testing.T, f *tree) {
	for _, name := range []string{"b.go", "a/z.go", "a.go", "a-b", "a/b/c", "A"} {
		f.put(t, name, "hit\nmiss\nhit 2\n")
	}
	require.Equal(t, []string{
		"A:1:hit", "A:3:hit 2", "a-b:1:hit", "a-b:3:hit 2", "a.go:1:hit", "a.go:3:hit 2",
		"a/b/c:1:hit", "a/b/c:3:hit 2", "a/z.go:1:hit", "a/z.go:3:hit 2", "b.go:1:hit", "b.go:3:hit 2",
	}, f.found(t, protocol.FilesSearch{Pattern: "^hit"}))
	require.Equal(t, []string{"a/b/c:1:hit", "a/z.go:1:hit"}, f.found(t, protocol.FilesSearch{Pattern: "hit$", Path: "/workspace/a"}))
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "nothing"}, 0)
	require.NoError(t, err)
	require.Equal(t, protocol.FilesSearchResult{Matches: []protocol.Match{}, Files: 6}, result)
}

func searchGlobs(t *testing.T, f *tree) {
	for _, name := range []string{"top.go", "src/a.go", "src/sub/b.go", "src/sub/b.txt"} {
		f.put(t, name, "x")
	}
	for _, test := range []struct {
		path, glob string
		want       []string
	}{
		{"", "*.go", []string{"src/a.go", "src/sub/b.go", "top.go"}},
		{"", "src/*.go", []string{"src/a.go"}},
		{"", "src/**/*.go", []string{"src/a.go", "src/sub/b.go"}},
		{"src", "sub/*", []string{"src/sub/b.go", "src/sub/b.txt"}},
		{"src", "*.{txt,md}", []string{"src/sub/b.txt"}},
		{"", "./top.*", []string{"top.go"}},
		{"top.go", "*.go", []string{"top.go"}},
		{"top.go", "*.md", []string{}},
	} {
		got := []string{}
		result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x", Path: test.path, Glob: test.glob}, 0)
		require.NoError(t, err)
		for _, m := range result.Matches {
			got = append(got, m.Path)
		}
		require.Equal(t, test.want, got, "%+v", test)
	}
	_, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x", Glob: "a[b"}, 0)
	require.Contains(t, requireFault(t, err, codes.InvalidPattern), "a[b")
}

func searchLines(t *testing.T, f *tree) {
	f.put(t, "file", "first\r\n\nlast word")
	require.Equal(t, []string{"file:1:first"}, f.found(t, protocol.FilesSearch{Pattern: "first$"}))
	require.Equal(t, []string{"file:2:"}, f.found(t, protocol.FilesSearch{Pattern: "^$"}))
	require.Equal(t, []string{"file:3:last word"}, f.found(t, protocol.FilesSearch{Pattern: `(?i)\bWORD$`}))
	require.Equal(t, []string{"file:3:last word"}, f.found(t, protocol.FilesSearch{Pattern: "last"}))
	require.Empty(t, f.found(t, protocol.FilesSearch{Pattern: `first\s+last`}), "a match is in one line")
}

func searchSkipped(t *testing.T, f *tree) {
	f.put(t, ".git/config", "hit")
	f.put(t, "sub/.git", "hit")
	f.put(t, "binary", "hit\x00")
	f.put(t, "latin1", "hit gr\xfcn")
	f.put(t, ".hidden", "hit")
	f.link(t, "/etc", "etc")
	f.link(t, ".hidden", "link")
	f.put(t, "large", "hit\n")
	require.NoError(t, os.Truncate(f.host("large"), isolation.MaxFileSize+1))
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit"}, 0)
	require.NoError(t, err)
	require.Equal(t, protocol.FilesSearchResult{
		Total: 2, Files: 2, Skipped: 1, SkippedPaths: []string{"large"}, Binary: 1, BinaryPaths: []string{"binary"},
		Matches: []protocol.Match{
			{Path: ".hidden", Line: 1, Text: "hit"},
			{Path: "latin1", Line: 1, Text: "hit grün"},
		},
	}, result)
	for _, name := range []string{"b1", "b2", "b3"} {
		f.put(t, name, "\x00")
	}
	result, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit"}, 0)
	require.NoError(t, err)
	require.Equal(t, 4, result.Binary)
	require.Equal(t, []string{"b1", "b2", "b3"}, result.BinaryPaths, "the first ones")
}

func searchNamed(t *testing.T, f *tree) {
	f.put(t, ".git/config", "hit")
	f.put(t, "dir/file", "hit")
	f.link(t, "dir", "link")
	require.Equal(t, []string{".git/config:1:hit"}, f.found(t, protocol.FilesSearch{Pattern: "hit", Path: ".git"}))
	require.Equal(t, []string{"link/file:1:hit"}, f.found(t, protocol.FilesSearch{Pattern: "hit", Path: "link"}))
	require.Equal(t, []string{"dir/file:1:hit"}, f.found(t, protocol.FilesSearch{Pattern: "hit", Path: "dir/file"}))
	require.NoError(t, os.Truncate(f.host("dir/file"), isolation.MaxFileSize+1))
	_, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit", Path: "dir/file"}, 0)
	requireFault(t, err, codes.TooLarge)
}

func searchBadPattern(t *testing.T, f *tree) {
	for pattern, want := range map[string]string{
		"a(b":      "missing closing )",
		"ab)c":     "unexpected )",
		"ab[z-a]":  "at character 4",
		"x**":      "at character 2",
		"(?=look)": "at character 1",
		`ab\`:      `trailing backslash at end of expression at character 3, "\\"`,
		"a{5000}":  "at character 2",
	} {
		_, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: pattern}, 0)
		message := requireFault(t, err, codes.InvalidPattern)
		require.Contains(t, message, "RE2")
		require.Contains(t, message, want)
	}
}

func searchMany(t *testing.T, f *tree) {
	long := "x" + strings.Repeat("é", 5000)
	f.put(t, "a", strings.Repeat("x\n", 999)+long+"\n")
	f.put(t, "b", "x")
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 0)
	require.NoError(t, err)
	require.Len(t, result.Matches, 1001)
	require.Equal(t, 1001, result.Total)
	require.Equal(t, protocol.Match{Path: "a", Line: 1000, Text: long}, result.Matches[999])
	result, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "x", Limit: 3}, 0)
	require.NoError(t, err)
	require.Len(t, result.Matches, 3)
	require.Equal(t, 1001, result.Total, "all are counted")
	require.Equal(t, 2, result.Files)
	require.False(t, result.Stopped)
	f.put(t, "c", strings.Repeat("x\n", isolation.MaxFound))
	result, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "x", Limit: 2 * isolation.MaxFound}, 0)
	require.NoError(t, err)
	require.Len(t, result.Matches, isolation.MaxFound)
	require.Equal(t, isolation.MaxFound+1001, result.Total)
}

// searchMuch: long texts take up the room that there is, and what follows them is counted.
func searchMuch(t *testing.T, f *tree) {
	f.put(t, "a", strings.Repeat("x", isolation.MaxFoundBytes-10))
	f.put(t, "b", strings.Repeat("x", 20)+"\nx\n")
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 0)
	require.NoError(t, err)
	require.Len(t, result.Matches, 1, "one that is left out is not followed by others")
	require.Equal(t, 3, result.Total)
}

func searchPatience(t *testing.T, f *tree) {
	f.put(t, "a", "x\n")
	f.put(t, "b", "x\n")
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, 1)
	require.NoError(t, err)
	require.True(t, result.Stopped)
	result, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "x"}, time.Minute)
	require.NoError(t, err)
	require.Equal(t, 2, result.Total)
	require.False(t, result.Stopped)
}

func searchDeep(t *testing.T, f *tree) {
	f.put(t, strings.Repeat("d/", 50)+"file", "hit")
	f.put(t, strings.Repeat("e/", 1000)+"file", "hit")
	result, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit"}, 0)
	require.NoError(t, err)
	require.Len(t, result.Matches, 1)
	require.Equal(t, 1, result.Skipped, "it does not go deeper than it should")
	require.Len(t, result.SkippedPaths, 1)
}

func searchCancel(t *testing.T, f *tree) {
	f.put(t, "file", strings.Repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n", 300_000))
	var err error
	for tries := 0; err == nil && tries < 1000; tries++ { // one may be over before it is cancelled
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, err = f.Search(ctx, protocol.FilesSearch{Pattern: `(a|aa)+(a|aa)+(a|aa)+b`}, 0)
	}
	require.ErrorIs(t, err, context.Canceled)
}
