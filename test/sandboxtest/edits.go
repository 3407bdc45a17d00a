//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func editsTests() map[string]func(*testing.T, *tree) {
	return map[string]func(*testing.T, *tree){
		"one after another":          editsSequence,
		"all or none":                editsStrict,
		"those that can be made":     editsBestEffort,
		"none can be made":           editsNone,
		"too many":                   editsTooMany,
		"the first of several":       editsFirst,
		"content that is expected":   expectContent,
		"a file that must not exist": expectAbsent,
	}
}

func editsSequence(t *testing.T, f *tree) {
	f.put(t, "file", "one\ntwo\nthree\n")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{
		{Old: "one", New: "1"}, {Old: "1\ntwo", New: "1\n2"}, {Old: "e", New: "E", ReplaceAll: true},
	}})
	require.NoError(t, err)
	require.Equal(t, "1\n2\nthrEE\n", f.get(t, "file"))
	require.Equal(t, []protocol.EditOutcome{
		{Replacements: 1, Line: 1}, {Replacements: 1, Line: 1}, {Replacements: 2, Line: 3},
	}, got.Outcomes)
	require.Equal(t, 4, got.Replacements)
	require.Equal(t, digest("1\n2\nthrEE\n"), got.SHA256)
	require.Contains(t, got.Diff, "+thrEE")
}

func editsStrict(t *testing.T, f *tree) {
	const content = "one\ntwo\ntwo\n"
	f.put(t, "file", content)
	before, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: []protocol.FileEdit{
		{Old: "one", New: "1"}, {Old: "missing", New: "x"}, {Old: "two", New: "2"}, {Old: "", New: "x"},
	}})
	message := requireFault(t, err, codes.EditNotFound)
	for _, want := range []string{
		"nothing was changed, because 3 of 4 edits cannot be made", "edit 2 of 4: ", "edit 3 of 4: the old text occurs 2 times", "edit 4 of 4: the old text is empty",
	} {
		require.Contains(t, message, want)
	}
	require.Equal(t, content, f.get(t, "file"))
	after, err := os.Stat(f.host("file"))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
}

func editsBestEffort(t *testing.T, f *tree) {
	f.put(t, "file", "one\ntwo\n")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", BestEffort: true, Edits: []protocol.FileEdit{
		{Old: "missing", New: "x"}, {Old: "two", New: "2"},
	}})
	require.NoError(t, err)
	require.Equal(t, "one\n2\n", f.get(t, "file"))
	require.Len(t, got.Outcomes, 2)
	require.Equal(t, codes.EditNotFound, got.Outcomes[0].Error.Code)
	require.Contains(t, got.Outcomes[0].Error.Message, "edit 1 of 2: ")
	require.Equal(t, protocol.EditOutcome{Replacements: 1, Line: 2}, got.Outcomes[1])
	require.Equal(t, 1, got.Replacements)
}

func editsNone(t *testing.T, f *tree) {
	f.put(t, "file", "one\n")
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", BestEffort: true, Edits: []protocol.FileEdit{
		{Old: "x", New: "y"}, {Old: "y", New: "z"},
	}})
	require.Contains(t, requireFault(t, err, codes.EditNotFound), "2 of 2 edits")
	require.Equal(t, "one\n", f.get(t, "file"))
}

func editsTooMany(t *testing.T, f *tree) {
	f.put(t, "file", "one\n")
	edits := make([]protocol.FileEdit, isolation.MaxEdits+1)
	for i := range edits {
		edits[i] = protocol.FileEdit{Old: "one", New: "one!"}
	}
	_, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: edits})
	requireFault(t, err, codes.TooLarge)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: edits[1:]})
	require.NoError(t, err)
}

func editsFirst(t *testing.T, f *tree) {
	f.put(t, "file", "a b a b")
	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Old: "b", New: "c", First: true})
	require.NoError(t, err)
	require.Equal(t, 1, got.Replacements)
	require.Equal(t, "a c a b", f.get(t, "file"))
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", First: true, Edits: []protocol.FileEdit{{Old: "a", New: "x"}}})
	requireFault(t, err, codes.EditNotUnique) // it is for Old alone
	require.Equal(t, "a c a b", f.get(t, "file"))
}

func expectContent(t *testing.T, f *tree) {
	f.put(t, "file", `{"a":1}`)
	right, wrong := digest(`{"a":1}`), digest("other")
	edits := []protocol.FileEdit{{Old: "1", New: "2"}}
	_, err := f.Write(t.Context(), protocol.FilesWrite{Path: "file", ExpectSHA256: wrong})
	message := requireFault(t, err, codes.FileChanged)
	require.Contains(t, message, right)
	require.Contains(t, message, "nothing was changed")
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: edits, ExpectSHA256: wrong})
	requireFault(t, err, codes.FileChanged)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Patch: "@@\n-{\n+[\n", ExpectSHA256: wrong})
	requireFault(t, err, codes.FileChanged)
	_, err = f.WriteJSON(t.Context(), protocol.FilesJSONWrite{Path: "file", Content: []byte("1"), ExpectSHA256: wrong})
	requireFault(t, err, codes.FileChanged)
	require.Equal(t, `{"a":1}`, f.get(t, "file"))
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "dir/missing", ExpectSHA256: right})
	require.Contains(t, requireFault(t, err, codes.FileChanged), "no longer exists")
	require.Equal(t, []string{"file"}, f.names(t, ""))

	got, err := f.Edit(t.Context(), protocol.FilesEdit{Path: "file", Edits: edits, ExpectSHA256: right})
	require.NoError(t, err)
	_, err = f.WriteJSON(t.Context(), protocol.FilesJSONWrite{
		Path: "file", Query: "/a", Content: []byte("3"), ExpectSHA256: got.SHA256,
	})
	require.NoError(t, err)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "file", Content: []byte("x"), ExpectSHA256: digest(`{"a":3}`)})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(f.host("file"), isolation.MaxFileSize+1))
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "file", ExpectSHA256: right})
	requireFault(t, err, codes.TooLarge)
}

func expectAbsent(t *testing.T, f *tree) {
	absent := protocol.GuardRead
	_, err := f.Write(t.Context(), protocol.FilesWrite{Path: "a/new", Content: []byte("x"), Guard: absent})
	require.NoError(t, err)
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "a/new", Content: []byte("y"), Guard: absent})
	require.Contains(t, requireFault(t, err, codes.FileNotRead), "Read it first")
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "a/new", Edits: []protocol.FileEdit{{Old: "x", New: "y"}}, Guard: absent})
	requireFault(t, err, codes.FileNotRead)
	_, err = f.Edit(t.Context(), protocol.FilesEdit{Path: "a/none", Edits: []protocol.FileEdit{{Old: "x", New: "y"}}, Guard: absent})
	requireFault(t, err, protocol.CodeNotFound)
	require.NoError(t, os.Truncate(f.host("a/new"), isolation.MaxFileSize+1))
	_, err = f.Write(t.Context(), protocol.FilesWrite{Path: "a/new", Guard: absent})
	requireFault(t, err, codes.FileNotRead)
}
