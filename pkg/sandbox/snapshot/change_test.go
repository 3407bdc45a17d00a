package snapshot_test

import (
	"bytes"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// packWhile packs a tree, and calls change once, when the path at is looked at and not
// yet read. It returns what the archive unpacks to.
func packWhile(t *testing.T, want tree, at string, change func(root *os.Root)) (tree, snapshot.Stats) {
	t.Helper()
	root := newRoot(t, want)
	done := false
	data, manifest, stats := pack(t, root, &snapshot.Options{Skip: func(name string, _ bool) bool {
		if name == at && !done {
			done = true
			change(root)
		}
		return false
	}})
	require.True(t, done)
	return unpacked(t, data, manifest), stats
}

// unpacked returns what an archive contains, and checks it against the manifest.
func unpacked(t *testing.T, data []byte, manifest snapshot.Manifest) tree {
	t.Helper()
	there := newRoot(t, nil)
	_, err := snapshot.Unpack(t.Context(), there, bytes.NewReader(data), nil)
	require.NoError(t, err)
	_, again, _ := pack(t, there, nil)
	require.Equal(t, manifest, again)
	return content(t, there)
}

func TestPack_WhatChangesBetweenLookAndRead(t *testing.T) {
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
		}, tree{"d": {dir: true}, "e": {dir: true}, "e/g": {body: "2"}}},
		"link becomes a file": {tree{"l": {link: "f"}}, "l", func(t *testing.T, root *os.Root) {
			t.Helper()
			require.NoError(t, root.Remove("l"))
			require.NoError(t, root.WriteFile("l", []byte("1"), 0o644))
		}, tree{"l": {body: "1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _ := packWhile(t, c.before, c.at, func(root *os.Root) { c.change(t, root) })
			require.Equal(t, c.want.filled(), got)
		})
	}
}

func TestPack_WhatNeverHoldsStillIsAnError(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"f": {body: "1"}})
	_, _, err := snapshot.Pack(t.Context(), root, &bytes.Buffer{}, &snapshot.Options{Skip: func(string, bool) bool {
		require.NoError(t, root.WriteFile("t", nil, 0o644))
		require.NoError(t, root.Rename("t", "f"))
		return false
	}})
	require.ErrorContains(t, err, `"f" changes all the time`)
}

// TestPack_LargeFileChangesWhileRead changes a file when its first bytes are written.
func TestPack_LargeFileChangesWhileRead(t *testing.T) {
	t.Parallel()
	body := large()
	size := len(body)
	truncate := func(size int) func(string) error {
		return func(p string) error { return os.Truncate(p, int64(size)) }
	}
	for name, c := range map[string]struct {
		change func(path string) error
		want   func(got []byte)
	}{
		"shrinks": {truncate(1 << 20), func(got []byte) { require.True(t, bytes.HasSuffix(got, make([]byte, 1<<20))) }},
		"grows":   {truncate(2 * size), func(got []byte) { require.Equal(t, body, got) }},
		"is written over": {
			func(p string) error { return os.Chtimes(p, time.Unix(1, 0), time.Unix(1, 0)) },
			func([]byte) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(t, tree{"f": {body: string(body)}, "g": {body: "after"}})
			var buf bytes.Buffer
			var once atomic.Bool
			w := writerFunc(func(p []byte) (int, error) {
				if once.CompareAndSwap(false, true) {
					if err := c.change(filepath.Join(root.Name(), "f")); err != nil {
						return 0, err
					}
				}
				return buf.Write(p)
			})
			manifest, stats, err := snapshot.Pack(t.Context(), root, w, nil)
			require.NoError(t, err)
			require.Equal(t, 1, stats.Changed)
			got := unpacked(t, buf.Bytes(), manifest)
			require.Len(t, got["f"].body, size)
			require.Equal(t, "after", got["g"].body)
			c.want([]byte(got["f"].body))
		})
	}
}
