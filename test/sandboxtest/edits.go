//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
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
	got, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: []sandbox.Edit{
		{Old: "one", New: "1"}, {Old: "1\ntwo", New: "1\n2"}, {Old: "e", New: "E", All: true},
	}})
	require.NoError(t, err)
	require.Equal(t, "1\n2\nthrEE\n", f.get(t, "file"))
	require.Equal(t, []sandbox.EditOutcome{
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
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: []sandbox.Edit{
		{Old: "one", New: "1"}, {Old: "missing", New: "x"}, {Old: "two", New: "2"}, {Old: "", New: "x"},
	}})
	message := requireFault(t, err, sandbox.FaultEditNotFound)
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
	got, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", BestEffort: true, Edits: []sandbox.Edit{
		{Old: "missing", New: "x"}, {Old: "two", New: "2"},
	}})
	require.NoError(t, err)
	require.Equal(t, "one\n2\n", f.get(t, "file"))
	require.Len(t, got.Outcomes, 2)
	require.Equal(t, sandbox.FaultEditNotFound, got.Outcomes[0].Fault.Code)
	require.Contains(t, got.Outcomes[0].Fault.Message, "edit 1 of 2: ")
	require.Equal(t, sandbox.EditOutcome{Replacements: 1, Line: 2}, got.Outcomes[1])
	require.Equal(t, 1, got.Replacements)
}

func editsNone(t *testing.T, f *tree) {
	f.put(t, "file", "one\n")
	_, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", BestEffort: true, Edits: []sandbox.Edit{
		{Old: "x", New: "y"}, {Old: "y", New: "z"},
	}})
	require.Contains(t, requireFault(t, err, sandbox.FaultEditNotFound), "2 of 2 edits")
	require.Equal(t, "one\n", f.get(t, "file"))
}

func editsTooMany(t *testing.T, f *tree) {
	f.put(t, "file", "one\n")
	edits := make([]sandbox.Edit, sandbox.MaxEdits+1)
	for i := range edits {
		edits[i] = sandbox.Edit{Old: "one", New: "one!", First: true}
	}
	_, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: edits})
	requireFault(t, err, sandbox.FaultTooLarge)
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: edits[1:]})
	require.NoError(t, err)
}

func editsFirst(t *testing.T, f *tree) {
	f.put(t, "file", "a b a b")
	got, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: []sandbox.Edit{{Old: "b", New: "c", First: true}}})
	require.NoError(t, err)
	require.Equal(t, 1, got.Replacements)
	require.Equal(t, "a c a b", f.get(t, "file"))
}

func expectContent(t *testing.T, f *tree) {
	f.put(t, "file", `{"a":1}`)
	right, wrong := sandbox.Expect{SHA256: digest(`{"a":1}`)}, sandbox.Expect{SHA256: digest("other")}
	edits := []sandbox.Edit{{Old: "1", New: "2"}}
	_, err := f.Write(t.Context(), sandbox.WriteRequest{Path: "file", Expect: wrong})
	message := requireFault(t, err, sandbox.FaultFileChanged)
	require.Contains(t, message, right.SHA256)
	require.Contains(t, message, "nothing was changed")
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: edits, Expect: wrong})
	requireFault(t, err, sandbox.FaultFileChanged)
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Patch: "@@\n-{\n+[\n", Expect: wrong})
	requireFault(t, err, sandbox.FaultFileChanged)
	_, err = f.WriteJSON(t.Context(), sandbox.WriteJSONRequest{Path: "file", Content: []byte("1"), Expect: wrong})
	requireFault(t, err, sandbox.FaultFileChanged)
	require.Equal(t, `{"a":1}`, f.get(t, "file"))
	_, err = f.Write(t.Context(), sandbox.WriteRequest{Path: "dir/missing", Expect: right})
	require.Contains(t, requireFault(t, err, sandbox.FaultFileChanged), "no longer exists")
	require.Equal(t, []string{"file"}, f.names(t, ""))

	got, err := f.Edit(t.Context(), sandbox.EditRequest{Path: "file", Edits: edits, Expect: right})
	require.NoError(t, err)
	_, err = f.WriteJSON(t.Context(), sandbox.WriteJSONRequest{
		Path: "file", Query: "/a", Content: []byte("3"), Expect: sandbox.Expect{SHA256: got.SHA256},
	})
	require.NoError(t, err)
	_, err = f.Write(t.Context(), sandbox.WriteRequest{Path: "file", Content: []byte("x"), Expect: sandbox.Expect{SHA256: digest(`{"a":3}`)}})
	require.NoError(t, err)
	require.NoError(t, os.Truncate(f.host("file"), sandbox.MaxFileSize+1))
	_, err = f.Write(t.Context(), sandbox.WriteRequest{Path: "file", Expect: right})
	requireFault(t, err, sandbox.FaultTooLarge)
}

func expectAbsent(t *testing.T, f *tree) {
	absent := sandbox.Expect{Absent: true}
	_, err := f.Write(t.Context(), sandbox.WriteRequest{Path: "a/new", Content: []byte("x"), Expect: absent})
	require.NoError(t, err)
	_, err = f.Write(t.Context(), sandbox.WriteRequest{Path: "a/new", Content: []byte("y"), Expect: absent})
	require.Contains(t, requireFault(t, err, sandbox.FaultFileNotRead), "Read it first")
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "a/new", Edits: []sandbox.Edit{{Old: "x", New: "y"}}, Expect: absent})
	requireFault(t, err, sandbox.FaultFileNotRead)
	_, err = f.Edit(t.Context(), sandbox.EditRequest{Path: "a/none", Edits: []sandbox.Edit{{Old: "x", New: "y"}}, Expect: absent})
	requireFault(t, err, sandbox.FaultNotFound)
	require.NoError(t, os.Truncate(f.host("a/new"), sandbox.MaxFileSize+1))
	_, err = f.Write(t.Context(), sandbox.WriteRequest{Path: "a/new", Expect: absent})
	requireFault(t, err, sandbox.FaultFileNotRead)
}
