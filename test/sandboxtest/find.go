//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func findTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"globs":                           globPatterns,
		"what a glob finds":               globKinds,
		"a glob that cannot be":           globRefused,
		"more files than the limit":       globLimit,
		".gitignore":                      ignoreRules,
		".gitignore of directories above": ignoreAbove,
		"odd ignore files":                ignoreOdd,
		"a tree":                          treeEntries,
		"a cut tree":                      treeLimit,
		"trees of what is no directory":   treeRefused,
		"searches with options":           searchOptions,
	}
}

// globbed are the paths that a glob finds.
func (f *tree) globbed(t *testing.T, req protocol.FilesGlob) []string {
	t.Helper()
	got, err := f.Glob(t.Context(), req)
	require.NoError(t, err, "%+v", req)
	require.Equal(t, len(got.Paths), got.Total)
	return append([]string{}, got.Paths...)
}

func globPatterns(t *testing.T, f *tree) {
	for _, name := range []string{"top.go", ".hidden.go", "src/a.go", "src/sub/b.go", "src/sub/b.txt", "src/[x].go", "src/a{b}.txt", "ü/ä.go"} {
		f.put(t, name, "x")
	}
	for _, test := range []struct {
		path, pattern string
		names         bool
		want          []string
	}{
		{"", "*.go", false, []string{".hidden.go", "top.go"}},
		{"", "*.go", true, []string{".hidden.go", "src/[x].go", "src/a.go", "src/sub/b.go", "top.go", "ü/ä.go"}},
		{"", "**/*.go", false, []string{".hidden.go", "src/[x].go", "src/a.go", "src/sub/b.go", "top.go", "ü/ä.go"}},
		{"", "src/*.go", true, []string{"src/[x].go", "src/a.go"}},
		{"", "./src/**", false, []string{"src/[x].go", "src/a.go", "src/a{b}.txt", "src/sub/b.go", "src/sub/b.txt"}},
		{"", "/workspace/src/sub/*", false, []string{"src/sub/b.go", "src/sub/b.txt"}},
		{"src", "sub/*.{go,md}", false, []string{"src/sub/b.go"}},
		{"/workspace/src/", "*", false, []string{"src/[x].go", "src/a.go", "src/a{b}.txt"}},
		{"", "src/[a-z].go", false, []string{"src/a.go"}},
		{"", `src/\[x\].go`, false, []string{"src/[x].go"}},
		{"", "?/?.go", false, []string{"ü/ä.go"}},
		{"", "src/a.go", false, []string{"src/a.go"}},
		{"", "nothing/**/x", false, []string{}},
		{"", "top.go/*", false, []string{}},
		{"", "", false, []string{".hidden.go", "src/[x].go", "src/a.go", "src/a{b}.txt", "src/sub/b.go", "src/sub/b.txt", "top.go", "ü/ä.go"}},
	} {
		require.Equal(t, test.want, f.globbed(t, protocol.FilesGlob{Pattern: test.pattern, Path: test.path, Names: test.names}), "%+v", test)
	}
}

func globKinds(t *testing.T, f *tree) {
	f.put(t, "dir/file", "x")
	f.put(t, ".git/config", "x")
	f.put(t, "sub/.git", "x")
	f.link(t, "dir", "link-to-dir")
	f.link(t, "dir/file", "link-to-file")
	f.link(t, "/nowhere", "dangling")
	require.Equal(t, []string{"dangling", "dir/file", "link-to-dir", "link-to-file"}, f.globbed(t, protocol.FilesGlob{Pattern: "**"}))
	require.Equal(t, []string{".git/config"}, f.globbed(t, protocol.FilesGlob{Pattern: "*", Path: ".git"}), "it was asked for by name")
}

func globRefused(t *testing.T, f *tree) {
	f.put(t, "file", "x")
	for pattern, code := range map[string]protocol.Code{
		"a[b":                     codes.InvalidPattern,
		"{a":                      codes.InvalidPattern,
		strings.Repeat("x", 5000): codes.InvalidPattern,
		"../*":                    codes.PathEscape,
		"a/../../*":               codes.PathEscape,
		"/etc/*":                  codes.PathEscape,
	} {
		_, err := f.Glob(t.Context(), protocol.FilesGlob{Pattern: pattern})
		require.Less(t, len(requireFault(t, err, code)), 6000)
	}
	_, err := f.Glob(t.Context(), protocol.FilesGlob{Pattern: "*", Path: "missing"})
	requireFault(t, err, protocol.CodeNotFound)
	_, err = f.Glob(t.Context(), protocol.FilesGlob{Pattern: "*", Path: "file"})
	requireFault(t, err, codes.NotDirectory)
	_, err = f.Glob(t.Context(), protocol.FilesGlob{Pattern: "*", Path: ".."})
	requireFault(t, err, codes.PathEscape)
}

func globLimit(t *testing.T, f *tree) {
	for i := range 20 {
		f.put(t, "f"+strconv.Itoa(10+i), "")
	}
	got, err := f.Glob(t.Context(), protocol.FilesGlob{Pattern: "*", Limit: 3})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesGlobResult{Paths: []string{"f10", "f11", "f12"}, Total: 20}, got)
}

// ignored is a tree with ignore files.
func (f *tree) ignored(t *testing.T) {
	t.Helper()
	f.put(t, ".gitignore", "# comment\n\n*.log\n!keep.log\n/build\nnode_modules/\nsecret?.txt\na/**/z\n\\#odd\ntrailing \n[0-9].tmp\n")
	f.put(t, "sub/.gitignore", "!again.log\n*.out\n/only-here\n")
	for _, name := range []string{
		"x.log", "keep.log", "build/out", "sub/build/in", "node_modules/m.js", "sub/node_modules/m.js", "secret1.txt", "secret12.txt",
		"a/b/c/z", "a/z", "z", "#odd", "trailing", "1.tmp", "12.tmp", "sub/again.log", "sub/other.log", "sub/x.out", "x.out",
		"sub/only-here", "sub/deep/only-here", "only-here",
	} {
		f.put(t, name, "hit\n")
	}
}

func ignoreRules(t *testing.T, f *tree) {
	f.ignored(t)
	want := []string{
		".gitignore", "12.tmp", "keep.log", "only-here", "secret12.txt", "sub/.gitignore", "sub/again.log", "sub/build/in",
		"sub/deep/only-here", "x.out", "z",
	}
	require.Equal(t, want, f.globbed(t, protocol.FilesGlob{Pattern: "**"}))
	all := f.globbed(t, protocol.FilesGlob{Pattern: "**", NoIgnore: true})
	require.Len(t, all, 24)
	searched, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit"}, 0)
	require.NoError(t, err)
	paths := []string{".gitignore", "sub/.gitignore"}
	for _, m := range searched.Matches {
		paths = append(paths, m.Path)
	}
	require.ElementsMatch(t, want, paths)
	searched, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "hit", NoIgnore: true}, 0)
	require.NoError(t, err)
	require.Len(t, searched.Matches, 22)
}

func ignoreAbove(t *testing.T, f *tree) {
	f.ignored(t)
	require.Equal(t, []string{"sub/.gitignore", "sub/again.log", "sub/build/in", "sub/deep/only-here"},
		f.globbed(t, protocol.FilesGlob{Pattern: "**", Path: "sub"}), "rules of the directories above apply")
	require.Equal(t, []string{"sub/.gitignore", "sub/again.log", "sub/build/in", "sub/deep/only-here"},
		f.globbed(t, protocol.FilesGlob{Pattern: "sub/**"}))
	require.Equal(t, []string{"node_modules/m.js"}, f.globbed(t, protocol.FilesGlob{Pattern: "*.js", Path: "node_modules"}), "what is asked for by name is not excluded")
	require.Equal(t, []string{"build/out"}, f.globbed(t, protocol.FilesGlob{Pattern: "build/*"}))
	require.Equal(t, []string{"x.log:1:hit"}, f.found(t, protocol.FilesSearch{Pattern: "hit", Path: "x.log"}))
}

func ignoreOdd(t *testing.T, f *tree) {
	f.put(t, "bom/.gitignore", "\uFEFFa\r\nb\r\n")
	f.put(t, "broken/.gitignore", "[\n\\\n**\\\n")
	f.put(t, "large/.gitignore", "a\n"+strings.Repeat("#\n", 1<<20))
	f.put(t, "dir/.gitignore/x", "")
	f.put(t, "real", "a\n")
	f.link(t, "../real", "linked/.gitignore")
	for _, dir := range []string{"bom", "broken", "large", "dir", "linked"} {
		f.put(t, dir+"/a", "")
		f.put(t, dir+"/b", "")
		f.put(t, dir+"/c", "")
	}
	require.Equal(t, []string{
		"bom/c", "broken/a", "broken/b", "broken/c", "dir/a", "dir/b", "dir/c", "large/a", "large/b", "large/c", "linked/a", "linked/b", "linked/c",
	}, f.globbed(t, protocol.FilesGlob{Pattern: "*/[abc]"}))
}

func treeEntries(t *testing.T, f *tree) {
	f.put(t, "b.txt", "123")
	f.put(t, "a/x/deep/er", "")
	f.put(t, "a/x/y", "1")
	f.put(t, ".git/config", "")
	f.put(t, "a.log", "")
	f.put(t, ".gitignore", "*.log\n")
	f.link(t, "/nowhere", "c")
	got, err := f.Tree(t.Context(), protocol.FilesTree{Depth: 2})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesTreeResult{Total: 5, Ignored: 1, Entries: []protocol.TreeEntry{
		{Path: ".gitignore", Type: protocol.TypeFile, Size: 6},
		{Path: "a", Type: protocol.TypeDir},
		{Path: "a/x", Type: protocol.TypeDir, Hidden: 2},
		{Path: "b.txt", Type: protocol.TypeFile, Size: 3},
		{Path: "c", Type: protocol.TypeSymlink},
	}}, got)
	got, err = f.Tree(t.Context(), protocol.FilesTree{Path: "/workspace/a", NoIgnore: true})
	require.NoError(t, err)
	require.Equal(t, protocol.FilesTreeResult{Path: "/workspace/a", Total: 4, Entries: []protocol.TreeEntry{
		{Path: "a/x", Type: protocol.TypeDir},
		{Path: "a/x/deep", Type: protocol.TypeDir},
		{Path: "a/x/deep/er", Type: protocol.TypeFile},
		{Path: "a/x/y", Type: protocol.TypeFile, Size: 1},
	}}, got)
}

func treeLimit(t *testing.T, f *tree) {
	for i := range 30 {
		f.put(t, "d/f"+strconv.Itoa(10+i), "")
	}
	got, err := f.Tree(t.Context(), protocol.FilesTree{Limit: 3})
	require.NoError(t, err)
	require.Equal(t, 31, got.Total)
	require.Len(t, got.Entries, 3)
	require.Equal(t, "d/f11", got.Entries[2].Path)
}

func treeRefused(t *testing.T, f *tree) {
	f.put(t, "file", "")
	_, err := f.Tree(t.Context(), protocol.FilesTree{Path: "file"})
	requireFault(t, err, codes.NotDirectory)
	_, err = f.Tree(t.Context(), protocol.FilesTree{Path: "missing"})
	requireFault(t, err, protocol.CodeNotFound)
	_, err = f.Tree(t.Context(), protocol.FilesTree{Path: "../x"})
	requireFault(t, err, codes.PathEscape)
	f.link(t, os.TempDir(), "out")
	_, err = f.Tree(t.Context(), protocol.FilesTree{Path: "out"})
	requireFault(t, err, codes.PathEscape)
}

func searchOptions(t *testing.T, f *tree) {
	f.put(t, "a", "Hit\nhit\nHIT\nhät HÄT\n")
	require.Equal(t, []string{"a:1:Hit", "a:2:hit", "a:3:HIT"}, f.found(t, protocol.FilesSearch{Pattern: "hIt", IgnoreCase: true}))
	require.Equal(t, []string{"a:4:hät HÄT"}, f.found(t, protocol.FilesSearch{Pattern: "^HÄT hät|x$", IgnoreCase: true}))
	got, err := f.Search(t.Context(), protocol.FilesSearch{Pattern: "(?i)hit", Limit: 2}, 0)
	require.NoError(t, err)
	require.Len(t, got.Matches, 2)
	require.Equal(t, 3, got.Total)
	got, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "(?i)hit", Limit: 3}, 0)
	require.NoError(t, err)
	require.Len(t, got.Matches, got.Total)
	_, err = f.Search(t.Context(), protocol.FilesSearch{Pattern: "ü(", IgnoreCase: true}, 0)
	require.Contains(t, requireFault(t, err, codes.InvalidPattern), "missing closing )")
}
