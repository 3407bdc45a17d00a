package snapshot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// saveWhile saves a directory, and calls change once, when the path at is looked at and not yet
// read. It returns what the tree of that save is, and of the next.
func saveWhile(t *testing.T, want tree, at string, change func(root *os.Root)) (first, next tree) {
	t.Helper()
	root := newRoot(t, want)
	done := false
	c := saved(t, root, &snapshot.Options{Skip: func(name string, _ bool) bool {
		if name == at && !done {
			done = true
			change(root)
		}
		return false
	}})
	require.True(t, done)
	return content(t, c.restored(t)), content(t, saved(t, root, nil).restored(t))
}

// growing is a context in which something grows whenever somebody looks whether it has ended.
type growing struct {
	context.Context //nolint:containedctx // it is one

	grow func()
}

func (g growing) Err() error {
	g.grow()
	return g.Context.Err()
}

// TestSave_AFileThatGrowsFasterThanItIsRead is saved with the size that it had; the next save has
// the rest.
func TestSave_AFileThatGrowsFasterThanItIsRead(t *testing.T) {
	t.Parallel()
	for name, begins := range map[string]int64{"content": 0, "hole": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(t, nil)
			file, err := root.OpenFile("f", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			require.NoError(t, err)
			defer file.Close()
			require.NoError(t, file.Truncate(begins))
			chunk, size := bytes.Repeat([]byte("x"), 1<<20), begins
			grow := func() {
				_, err := file.Write(chunk)
				require.NoError(t, err)
				size += int64(len(chunk))
			}
			grow()
			last, bodies, index := snapshot.Tree{}, newMemory(), snapshot.Index{}
			limits := &snapshot.Options{Limits: snapshot.Limits{MaxBytes: 64 << 20}}
			delta, err := snapshot.Save(growing{t.Context(), grow}, root, last, index, bodies, limits)
			require.NoError(t, err)
			require.Less(t, delta.Set["f"].Size, size)
			last.Apply(delta, "")
			delta, err = snapshot.Save(t.Context(), root, last, index, bodies, limits)
			require.NoError(t, err)
			require.Equal(t, size, delta.Set["f"].Size)
		})
	}
}

// TestSave_WhatChangesBetweenLookAndRead is left out, or what it is now; the next save has it.
func TestSave_WhatChangesBetweenLookAndRead(t *testing.T) {
	t.Parallel()
	secret := tree{"f": {body: "1"}, "other": {body: "other"}}
	inDir := tree{"d": {dir: true}, "d/f": {body: "1"}, "e": {dir: true}, "e/g": {body: "2"}}
	for name, c := range map[string]struct {
		before tree
		at     string
		change func(t *testing.T, root *os.Root)
		want   tree
	}{
		"file vanishes": {secret, "f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("f"))
		}, tree{"other": {body: "other"}}},
		"file is replaced": {secret, "f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.WriteFile("t", []byte("new"), 0o644))
			require.NoError(t, root.Rename("t", "f"))
		}, tree{"f": {body: "new"}, "other": {body: "other"}}},
		"file becomes a link to another": {secret, "f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("f"))
			require.NoError(t, root.Symlink("other", "f"))
		}, tree{"f": {link: "other"}, "other": {body: "other"}}},
		"file becomes a pipe": {secret, "f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("f"))
			makeFIFO(t, filepath.Join(root.Name(), "f"))
		}, tree{"other": {body: "other"}}},
		"file becomes a directory": {secret, "f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("f"))
			require.NoError(t, root.Mkdir("f", 0o755))
		}, tree{"f": {dir: true}, "other": {body: "other"}}},
		"directory vanishes": {inDir, "d", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.RemoveAll("d"))
		}, tree{"e": {dir: true}, "e/g": {body: "2"}}},
		"directory becomes a link to another": {inDir, "d", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.RemoveAll("d"))
			require.NoError(t, root.Symlink("e", "d"))
		}, tree{"d": {link: "e"}, "e": {dir: true}, "e/g": {body: "2"}}},
		"directory becomes a file with files below": {inDir, "d/f", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.RemoveAll("d"))
			require.NoError(t, root.WriteFile("d", nil, 0o644))
		}, tree{"d": {}, "e": {dir: true}, "e/g": {body: "2"}}},
		"link becomes a file": {tree{"l": {link: "f"}}, "l", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("l"))
			require.NoError(t, root.WriteFile("l", []byte("1"), 0o644))
		}, tree{"l": {body: "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, next := saveWhile(t, c.before, c.at, func(root *os.Root) { c.change(t, root) })
			require.Equal(t, c.want.filled(), next)
			for name, is := range first {
				require.Contains(t, []node{c.before.filled()[name], c.want.filled()[name]}, is, name)
			}
		})
	}
}

// threeMerged merges the changes of a fork into a directory, base being what both were.
func threeMerged(tb testing.TB, base, fork, local tree) (tree, snapshot.Changes) {
	tb.Helper()
	was, is := saved(tb, newRoot(tb, base), nil), saved(tb, newRoot(tb, fork), nil)
	maps.Copy(is.bodies.bodies, was.bodies.bodies)
	root := newRoot(tb, local)
	changes, err := snapshot.Merge(tb.Context(), root, was.tree, is.tree, is.bodies, nil)
	require.NoError(tb, err)
	changes.Base = nil
	return content(tb, root), changes
}

// TestMerge_Table: nothing of either side is lost, and each conflict is named.
func TestMerge_Table(t *testing.T) {
	t.Parallel()
	const theirs = ".toolfleet-theirs"
	for name, c := range map[string]struct {
		base, fork, local, want tree
		changes                 snapshot.Changes
	}{
		"lines apart": {
			base: tree{"f": {body: "1\n2\n3\n4\n"}}, fork: tree{"f": {body: "1\n2\n3\nfour\n"}}, local: tree{"f": {body: "one\n2\n3\n4\n"}},
			want:    tree{"f": {body: "one\n2\n3\nfour\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"the same line": {
			base: tree{"f": {body: "1\n2\n"}}, fork: tree{"f": {body: "one\n2\n"}}, local: tree{"f": {body: "eins\n2\n"}},
			want:    tree{"f": {body: "eins\n2\n"}, "f" + theirs: {body: "one\n2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"neighbouring lines": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "1\ntwo\n3\n"}}, local: tree{"f": {body: "one\n2\n3\n"}},
			want:    tree{"f": {body: "one\n2\n3\n"}, "f" + theirs: {body: "1\ntwo\n3\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"both insert at one point": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "1\nfork\n"}}, local: tree{"f": {body: "1\nlocal\n"}},
			want:    tree{"f": {body: "1\nlocal\n"}, "f" + theirs: {body: "1\nfork\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"the same change and one more": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "one\n2\nthree\n"}}, local: tree{"f": {body: "one\n2\n3\n"}},
			want:    tree{"f": {body: "one\n2\nthree\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"CRLF lines apart": {
			base: tree{"f": {body: "1\r\n2\r\n3\r\n"}}, fork: tree{"f": {body: "1\r\n2\r\nthree\r\n"}}, local: tree{"f": {body: "one\r\n2\r\n3\r\n"}},
			want:    tree{"f": {body: "one\r\n2\r\nthree\r\n"}},
			changes: snapshot.Changes{Written: []string{"f"}, Merged: []string{"f"}},
		},
		"CRLF of all lines against an edit": {
			base: tree{"f": {body: "1\n2\n3\n"}}, fork: tree{"f": {body: "1\n2\nthree\n"}}, local: tree{"f": {body: "1\r\n2\r\n3\r\n"}},
			want:    tree{"f": {body: "1\r\n2\r\n3\r\n"}, "f" + theirs: {body: "1\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"rename against edit": {
			base: tree{"old": {body: "1\n2\n3\n"}}, fork: tree{"old": {body: "1\n2\nthree\n"}}, local: tree{"new": {body: "1\n2\n3\n"}},
			want:    tree{"new": {body: "1\n2\n3\n"}, "old" + theirs: {body: "1\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"old"}, Theirs: []string{"old" + theirs}},
		},
		"edit against rename": {
			base: tree{"old": {body: "1\n2\n3\n"}}, fork: tree{"new": {body: "1\n2\n3\n"}}, local: tree{"old": {body: "one\n2\n3\n"}},
			want:    tree{"old": {body: "one\n2\n3\n"}, "new": {body: "1\n2\n3\n"}},
			changes: snapshot.Changes{Written: []string{"new"}, Conflicts: []string{"old"}},
		},
		"delete against edit": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "one\n"}}, local: tree{},
			want:    tree{"f" + theirs: {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"edit against delete": {
			base: tree{"f": {body: "1\n"}}, fork: tree{}, local: tree{"f": {body: "one\n"}},
			want:    tree{"f": {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}},
		},
		"mode against edit": {
			base: tree{"f": {body: "1\n"}, "g": {body: "1\n"}}, fork: tree{"f": {body: "one\n"}, "g": {body: "1\n", mode: 0o755}},
			local:   tree{"f": {body: "1\n", mode: 0o755}, "g": {body: "one\n"}},
			want:    tree{"f": {body: "one\n", mode: 0o755}, "g": {body: "one\n", mode: 0o755}},
			changes: snapshot.Changes{Written: []string{"f", "g"}, Merged: []string{"f", "g"}},
		},
		"mode against mode": {
			base: tree{"f": {body: "1\n"}}, fork: tree{"f": {body: "1\n", mode: 0o755}}, local: tree{"f": {body: "1\n", mode: 0o600}},
			want:    tree{"f": {body: "1\n", mode: 0o600}, "f" + theirs: {body: "1\n", mode: 0o755}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"binary": {
			base: tree{"f": {body: "\x00\n2\n3\n"}}, fork: tree{"f": {body: "\x00\n2\nthree\n"}}, local: tree{"f": {body: "\x00one\n2\n3\n"}},
			want:    tree{"f": {body: "\x00one\n2\n3\n"}, "f" + theirs: {body: "\x00\n2\nthree\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"both added": {
			fork: tree{"f": {body: "1\n"}, "same": {body: "2\n"}}, local: tree{"f": {body: "one\n"}, "same": {body: "2\n"}},
			want:    tree{"f": {body: "one\n"}, "f" + theirs: {body: "1\n"}, "same": {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f" + theirs}},
		},
		"directory against file": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {body: "one\n"}}, local: tree{"x": {dir: true}, "x/a": {body: "2\n"}},
			want:    tree{"x": {dir: true}, "x/a": {body: "2\n"}, "x" + theirs: {body: "one\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x"}, Theirs: []string{"x" + theirs}},
		},
		"file against directory": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {dir: true}, "x/a": {body: "2\n"}}, local: tree{"x": {body: "one\n"}},
			want:    tree{"x": {body: "one\n"}, "x-a" + theirs: {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x", "x/a"}, Theirs: []string{"x-a" + theirs}},
		},
		"link against edit": {
			base: tree{"x": {body: "1\n"}}, fork: tree{"x": {link: "y"}}, local: tree{"x": {body: "one\n"}},
			want:    tree{"x": {body: "one\n"}, "x" + theirs: {link: "y"}},
			changes: snapshot.Changes{Conflicts: []string{"x"}, Theirs: []string{"x" + theirs}},
		},
		"long name": { // which is not cut inside a character
			base: tree{}, fork: tree{"x" + strings.Repeat("é", 127): {body: "2\n"}}, local: tree{"x" + strings.Repeat("é", 127): {body: "1\n"}},
			want:    tree{"x" + strings.Repeat("é", 127): {body: "1\n"}, "x" + strings.Repeat("é", 118) + theirs: {body: "2\n"}},
			changes: snapshot.Changes{Conflicts: []string{"x" + strings.Repeat("é", 127)}, Theirs: []string{"x" + strings.Repeat("é", 118) + theirs}},
		},
		"removed directory against a new file in it": {
			base: tree{"d": {dir: true}, "d/a": {body: "1\n"}}, fork: tree{"d": {dir: true}, "d/a": {body: "1\n"}, "d/b": {body: "2\n"}}, local: tree{},
			want:    tree{"d": {dir: true}, "d/b": {body: "2\n"}},
			changes: snapshot.Changes{Written: []string{"d", "d/b"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, changes := threeMerged(t, c.base, c.fork, c.local)
			require.Equal(t, c.want.filled(), got)
			require.Equal(t, c.changes, changes)
			// A merge that is made once more, as after a lost worker, changes nothing.
			again, changes := threeMerged(t, c.base, c.fork, got)
			require.Equal(t, got, again)
			require.Empty(t, changes.Removed)
		})
	}
}

// endless has a head, and then pieces without end.
type endless struct {
	head  string
	piece func(i int) string
	n     int
	read  int
}

func (e *endless) Read(p []byte) (int, error) {
	if e.head == "" {
		e.head = e.piece(e.n)
		e.n++
	}
	n := copy(p, e.head)
	e.head = e.head[n:]
	e.read += n
	return n, nil
}

// TestReader_EndsSoon whatever has no end: one entry beyond what a tree may have, or after the most
// that an entry takes.
func TestReader_EndsSoon(t *testing.T) {
	t.Parallel()
	const most = 1000
	constant := func(piece string) func(int) string { return func(int) string { return piece } }
	numbered := func(format string) func(int) string { return func(i int) string { return fmt.Sprintf(format, i) } }
	part := `{"size":1,"sum":"s","body":"b"},`
	for name, c := range map[string]struct {
		head  string
		piece func(int) string
		tree  bool // of a tree, else of a delta
		want  error
		read  int
	}{
		"entries":             {`{"d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), true, snapshot.ErrLimit, 32 << 10},
		"entries of one name": {`{"d":{"type":"dir"}`, constant(`,"d":{"type":"dir"}`), true, snapshot.ErrLimit, 32 << 10},
		"parts": {
			`{"d":{"type":"dir"}`,
			numbered(`,"f%d":{"type":"file","size":4,"parts":[` + strings.Repeat(part, 3) + `{"size":1,"sum":"s","body":"b"}]}`),
			true, snapshot.ErrLimit, 128 << 10,
		},
		"parts of an entry":  {`{"f":{"type":"file","size":4,"parts":[`, constant(part), true, snapshot.ErrLimit, 48 << 20},
		"a name":             {`{"`, constant("long"), true, snapshot.ErrLimit, 48 << 20},
		"a field":            {`{"d":{"type":"`, constant("long"), true, snapshot.ErrLimit, 48 << 20},
		"space":              {`{`, constant("    "), true, snapshot.ErrLimit, 48 << 20},
		"no JSON":            {``, constant("long"), true, snapshot.ErrCorrupt, 32 << 10},
		"another type":       {`["d"`, constant(`,"d"`), true, snapshot.ErrCorrupt, 32 << 10},
		"changes":            {`{"set":{"d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), false, snapshot.ErrLimit, 32 << 10},
		"removals":           {`{"removed":["d"`, constant(`,"d"`), false, snapshot.ErrLimit, 32 << 10},
		"contents":           {`{"inline":"`, constant("long"), false, snapshot.ErrLimit, 48 << 20},
		"an entry of others": {`{"../d":{"type":"dir"}`, numbered(`,"d%d":{"type":"dir"}`), true, snapshot.ErrUnsafe, 32 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := &endless{head: c.head, piece: c.piece}
			r := snapshot.NewReader(from, snapshot.Limits{MaxEntries: most})
			var err error
			if c.tree {
				_, err = r.Tree()
			} else {
				_, err = r.Delta()
			}
			require.ErrorIs(t, err, c.want)
			require.Less(t, from.read, c.read)
		})
	}
}

// broken is a reader that fails.
type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }

func TestReader_AnErrorOfItsSourceIsItsOwn(t *testing.T) {
	t.Parallel()
	away := errors.New("away")
	_, err := snapshot.NewReader(broken{away}, snapshot.Limits{}).Tree()
	require.Equal(t, away, err)
}

// TestReader_ReadsWhatIsWritten, also names that are no text, and a tree that has all that it may.
func TestReader_ReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	want := snapshot.Delta{Removed: snapshot.Names{"a\xff", "b"}, Inline: []byte("content"), Set: snapshot.Tree{
		"d": {Type: protocol.TypeDir, Mode: 0o700}, "l\xfe": {Type: protocol.TypeSymlink, Target: "to\xff"},
		"f": {Type: protocol.TypeFile, Size: 3, ModTime: 1, Parts: []snapshot.Part{{Size: 1, Sum: "s", Body: "b", At: 7}, {Size: 2}}},
	}}
	encoded, err := json.Marshal(want)
	require.NoError(t, err)
	got, err := snapshot.NewReader(strings.NewReader(string(encoded)), snapshot.Limits{MaxEntries: 3, MaxBytes: 1}).Delta()
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestTree_WithMorePartsThanAFileMayHave is nobody's: two holes are one.
func TestTree_WithMorePartsThanAFileMayHave(t *testing.T) {
	t.Parallel()
	node := snapshot.Node{Type: protocol.TypeFile}
	for range snapshot.MaxParts {
		node.Parts = append(node.Parts, snapshot.Part{Size: 1, Sum: "s", Body: "b"})
		node.Size++
	}
	require.NoError(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}))
	node.Parts = append(node.Parts, snapshot.Part{Size: 1})
	node.Size++
	require.ErrorIs(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}), snapshot.ErrLimit)
	node.Parts = []snapshot.Part{{Size: 1}, {Size: 1}}
	node.Size = 2
	require.ErrorIs(t, snapshot.Tree{"f": node}.Validate(snapshot.Limits{}), snapshot.ErrUnsafe)
}
