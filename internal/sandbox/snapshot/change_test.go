package snapshot_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

// saveWhile saves a directory, and calls change once, when the path at is looked at and not yet
// read. It returns what the tree of that save is, and of the next.
func saveWhile(t *testing.T, want tree, at string, change func(root *os.Root)) (first, next tree) {
	t.Helper()
	root := newRoot(t, want)
	done := false
	c := saved(t, root, &snapshot.SaveOptions{Skip: func(name string, _ bool) bool {
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
			limits := &snapshot.SaveOptions{Limits: snapshot.Limits{MaxBytes: 64 << 20}}
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
