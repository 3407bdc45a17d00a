package snapshot_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// threeWay syncs local with remote, base being what both were.
func threeWay(tb testing.TB, base, remote, local tree, opts *snapshot.Options) (*os.Root, snapshot.Changes) {
	tb.Helper()
	manifest := saved(tb, newRoot(tb, base), nil).manifest
	root := newRoot(tb, local)
	changes, err := saved(tb, newRoot(tb, remote), nil).to(tb, root, manifest, opts)
	require.NoError(tb, err)
	return root, changes
}

func TestSync_Table(t *testing.T) {
	t.Parallel()
	big := string(large())
	bigger := big + "more"
	theirs := func(names ...string) []string {
		for i := range names {
			names[i] += ".toolfleet-theirs"
		}
		return names
	}
	for name, c := range map[string]struct {
		base, remote, local, want tree
		changes                   snapshot.Changes
	}{
		"nothing changed": {
			base: tree{"f": {body: "1"}}, remote: tree{"f": {body: "1"}}, local: tree{"f": {body: "1"}},
			want: tree{"f": {body: "1"}},
		},
		"only local changed": {
			base: tree{"f": {body: "1"}, "g": {body: "1"}}, remote: tree{"f": {body: "1"}, "g": {body: "1"}},
			local: tree{"f": {body: "2"}, "h": {body: "3"}}, want: tree{"f": {body: "2"}, "h": {body: "3"}},
		},
		"changed, new and removed": {
			base:    tree{"f": {body: "1"}, "g": {body: "1"}},
			remote:  tree{"f": {body: "2"}, "d": {dir: true}, "d/h": {body: "3"}, "l": {link: "f"}, "e": {dir: true}},
			local:   tree{"f": {body: "1"}, "g": {body: "1"}},
			want:    tree{"f": {body: "2"}, "d": {dir: true}, "d/h": {body: "3"}, "l": {link: "f"}, "e": {dir: true}},
			changes: snapshot.Changes{Written: []string{"d", "d/h", "e", "f", "l"}, Removed: []string{"g"}},
		},
		"large files": {
			base:    tree{"same": {body: big}, "new": {body: big}, "both": {body: big}},
			remote:  tree{"same": {body: big}, "new": {body: bigger}, "both": {body: bigger}},
			local:   tree{"same": {body: big}, "new": {body: big}, "both": {body: "mine"}},
			want:    tree{"same": {body: big}, "new": {body: bigger}, "both": {body: "mine"}, "both.toolfleet-theirs": {body: bigger}},
			changes: snapshot.Changes{Written: []string{"new"}, Conflicts: []string{"both"}, Theirs: theirs("both")},
		},
		"the same change on both sides": {
			base: tree{"f": {body: "1"}, "g": {body: "1"}}, remote: tree{"f": {body: "2"}}, local: tree{"f": {body: "2"}},
			want: tree{"f": {body: "2"}},
		},
		"both changed": {
			base: tree{"f": {body: "1"}}, remote: tree{"f": {body: "2"}}, local: tree{"f": {body: "3"}},
			want:    tree{"f": {body: "3"}, "f.toolfleet-theirs": {body: "2"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: theirs("f")},
		},
		"beside what is made again": {
			base:    tree{"a": {dir: true}, "a/x": {dir: true}},
			remote:  tree{"a": {dir: true}, "a/x": {body: "2"}, "a/y": {body: "3"}},
			want:    tree{"a": {dir: true}, "a/x.toolfleet-theirs": {body: "2"}, "a/y": {body: "3"}},
			changes: snapshot.Changes{Written: []string{"a", "a/y"}, Conflicts: []string{"a/x"}, Theirs: theirs("a/x")},
		},
		"both made": {
			remote: tree{"f": {body: "2", mode: 0o755}}, local: tree{"f": {body: "3"}},
			want:    tree{"f": {body: "3"}, "f.toolfleet-theirs": {body: "2", mode: 0o755}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: theirs("f")},
		},
		"another version is there already": {
			base: tree{"f": {body: "1"}}, remote: tree{"f": {body: "2"}},
			local: tree{"f": {body: "3"}, "f.toolfleet-theirs": {body: "old"}},
			want: tree{
				"f": {body: "3"}, "f.toolfleet-theirs": {body: "old"}, "f.toolfleet-theirs.2": {body: "2"},
			},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: []string{"f.toolfleet-theirs.2"}},
		},
		"changed there, removed here": {
			base: tree{"f": {body: "1"}}, remote: tree{"f": {body: "2"}}, local: tree{},
			want:    tree{"f.toolfleet-theirs": {body: "2"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: theirs("f")},
		},
		"removed there, changed here": {
			base: tree{"f": {body: "1"}}, remote: tree{}, local: tree{"f": {body: "2"}}, want: tree{"f": {body: "2"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}},
		},
		"mode changed there": {
			base: tree{"f": {body: "1"}, "d": {dir: true}}, local: tree{"f": {body: "1"}, "d": {dir: true}},
			remote:  tree{"f": {body: "1", mode: 0o755}, "d": {dir: true, mode: 0o700}},
			want:    tree{"f": {body: "1", mode: 0o755}, "d": {dir: true, mode: 0o700}},
			changes: snapshot.Changes{Written: []string{"d", "f"}},
		},
		"mode changed here": {
			base: tree{"f": {body: "1"}}, remote: tree{"f": {body: "2"}}, local: tree{"f": {body: "1", mode: 0o755}},
			want:    tree{"f": {body: "1", mode: 0o755}, "f.toolfleet-theirs": {body: "2"}},
			changes: snapshot.Changes{Conflicts: []string{"f"}, Theirs: theirs("f")},
		},
		"link changed": {
			base: tree{"l": {link: "a"}, "m": {link: "a"}}, remote: tree{"l": {link: "b"}, "m": {link: "b"}},
			local: tree{"l": {link: "a"}, "m": {link: "c"}}, want: tree{"l": {link: "b"}, "m": {link: "c"}, "m.toolfleet-theirs": {link: "b"}},
			changes: snapshot.Changes{Written: []string{"l"}, Conflicts: []string{"m"}, Theirs: theirs("m")},
		},
		"file becomes directory": {
			base: tree{"a": {body: "1"}}, remote: tree{"a": {dir: true}, "a/b": {body: "2"}}, local: tree{"a": {body: "1"}},
			want:    tree{"a": {dir: true}, "a/b": {body: "2"}},
			changes: snapshot.Changes{Written: []string{"a", "a/b"}},
		},
		"directory becomes file": {
			base: tree{"a": {dir: true}, "a/b": {body: "2"}}, remote: tree{"a": {body: "1"}},
			local: tree{"a": {dir: true}, "a/b": {body: "2"}}, want: tree{"a": {body: "1"}},
			changes: snapshot.Changes{Written: []string{"a"}, Removed: []string{"a/b"}},
		},
		"directory becomes file, with work in it": {
			base: tree{"a": {dir: true}, "a/b": {body: "2"}}, remote: tree{"a": {body: "1"}},
			local:   tree{"a": {dir: true}, "a/b": {body: "2"}, "a/mine": {body: "3"}},
			want:    tree{"a": {dir: true}, "a/mine": {body: "3"}, "a.toolfleet-theirs": {body: "1"}},
			changes: snapshot.Changes{Removed: []string{"a/b"}, Conflicts: []string{"a"}, Theirs: theirs("a")},
		},
		"link becomes directory": {
			base: tree{"a": {link: ".."}}, remote: tree{"a": {dir: true}, "a/b": {body: "2"}}, local: tree{"a": {link: ".."}},
			want:    tree{"a": {dir: true}, "a/b": {body: "2"}},
			changes: snapshot.Changes{Written: []string{"a", "a/b"}},
		},
		"removed directory with work in it stays": {
			base: tree{"a": {dir: true}, "a/b": {body: "2"}}, remote: tree{},
			local: tree{"a": {dir: true}, "a/b": {body: "2"}, "a/mine": {body: "3"}},
			want:  tree{"a": {dir: true}, "a/mine": {body: "3"}}, changes: snapshot.Changes{Removed: []string{"a/b"}},
		},
		"removed tree": {
			base:  tree{"a": {dir: true}, "a/b": {dir: true}, "a/b/c": {body: "2"}, "e": {dir: true}},
			local: tree{"a": {dir: true}, "a/b": {dir: true}, "a/b/c": {body: "2"}, "e": {dir: true}},
			want:  tree{}, changes: snapshot.Changes{Removed: []string{"a", "a/b", "a/b/c", "e"}},
		},
		"new file in a directory that is gone here": {
			base: tree{"a": {dir: true, mode: 0o700}}, remote: tree{"a": {dir: true, mode: 0o700}, "a/b": {body: "1"}},
			local: tree{}, want: tree{"a": {dir: true, mode: 0o700}, "a/b": {body: "1"}},
			changes: snapshot.Changes{Written: []string{"a", "a/b"}},
		},
		"new file in a directory that is in conflict": {
			base: tree{"a": {dir: true}}, remote: tree{"a": {dir: true, mode: 0o700}, "a/b": {body: "1"}},
			local: tree{}, want: tree{"a-b.toolfleet-theirs": {body: "1"}},
			changes: snapshot.Changes{Conflicts: []string{"a", "a/b"}, Theirs: theirs("a-b")},
		},
		"new file where a link leads elsewhere": {
			base: tree{"a": {dir: true}}, remote: tree{"a": {dir: true}, "a/b": {body: "1"}},
			local:   tree{"real": {dir: true}, "a": {link: "real"}},
			want:    tree{"real": {dir: true}, "a": {link: "real"}, "a-b.toolfleet-theirs": {body: "1"}},
			changes: snapshot.Changes{Conflicts: []string{"a/b"}, Theirs: theirs("a-b")},
		},
		"removed file behind a link": {
			base: tree{"a": {dir: true}, "a/b": {body: "1"}}, remote: tree{},
			local:   tree{"real": {dir: true}, "real/b": {body: "1"}, "a": {link: "real"}},
			want:    tree{"real": {dir: true}, "real/b": {body: "1"}, "a": {link: "real"}},
			changes: snapshot.Changes{Conflicts: []string{"a"}},
		},
		"long name in conflict": {
			base: tree{}, remote: tree{strings.Repeat("n", 255): {body: "1"}}, local: tree{strings.Repeat("n", 255): {body: "2"}},
			want: tree{
				strings.Repeat("n", 255):                       {body: "2"},
				strings.Repeat("n", 238) + ".toolfleet-theirs": {body: "1"},
			},
			changes: snapshot.Changes{
				Conflicts: []string{strings.Repeat("n", 255)}, Theirs: theirs(strings.Repeat("n", 238)),
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, changes := threeWay(t, c.base, c.remote, c.local, nil)
			changes.Base = nil // TestLaw_SyncIsAThreeWayMerge looks at it
			require.Equal(t, c.changes, changes)
			require.Equal(t, c.want.filled(), content(t, root))
		})
	}
}

func TestSync_SkippedIsNeitherWrittenNorRemoved(t *testing.T) {
	t.Parallel()
	base := tree{"d": {dir: true}, "d/f": {body: "1"}, "f": {body: "1"}}
	remote := tree{"d": {dir: true}, "d/f": {body: "2"}, "f": {body: "2"}}
	opts := &snapshot.Options{Skip: func(p string, _ bool) bool { return p == "d" }}
	manifest := saved(t, newRoot(t, base), nil).manifest
	for name, from := range map[string]tree{"changed": remote, "missing": {"f": {body: "2"}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := newRoot(t, base)
			changes, err := saved(t, newRoot(t, from), nil).to(t, root, manifest, opts)
			require.NoError(t, err)
			require.Equal(t, []string{"f"}, changes.Written)
			require.NotContains(t, changes.Base, "d/f")
			require.Equal(t, "1", content(t, root)["d/f"].body)
		})
	}
}

func TestSync_RefusesABaseThatLeadsOutside(t *testing.T) {
	t.Parallel()
	top := newRoot(t, tree{"canary": {body: "alive"}, "root": {dir: true}})
	base := snapshot.Manifest{"../canary": {Type: protocol.TypeFile, Mode: 0o644, Size: 5}}
	_, err := saved(t, newRoot(t, nil), nil).to(t, openRoot(t, filepath.Join(top.Name(), "root")), base, nil)
	require.ErrorIs(t, err, snapshot.ErrUnsafe)
	require.Equal(t, "alive", content(t, top)["canary"].body)
}

func TestSync_ReplacesAFileInOneStep(t *testing.T) {
	t.Parallel()
	root := newRoot(t, tree{"f": {body: "old"}})
	base := saved(t, root, nil).manifest
	reader, err := root.Open("f")
	require.NoError(t, err)
	defer reader.Close()
	_, err = saved(t, newRoot(t, tree{"f": {body: "new"}}), nil).to(t, root, base, nil)
	require.NoError(t, err)
	got := make([]byte, 3)
	_, err = reader.Read(got)
	require.NoError(t, err)
	require.Equal(t, "old", string(got), "who reads goes on reading the old file")
}

// TestSync_TimesAreNotBelieved: a session can set a file's time back, and its size stays; the
// content tells.
func TestSync_TimesAreNotBelieved(t *testing.T) {
	t.Parallel()
	before := tree{"f": {body: "old"}}
	remote, local := newRoot(t, before), newRoot(t, before)
	base := saved(t, remote, nil).manifest
	was, err := remote.Stat("f")
	require.NoError(t, err)
	require.NoError(t, remote.WriteFile("f", []byte("new"), 0o600))
	require.NoError(t, remote.Chtimes("f", was.ModTime(), was.ModTime()))
	changes, err := saved(t, remote, nil).to(t, local, base, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"f"}, changes.Written)
	content, err := local.ReadFile("f")
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
}

// TestSync_FetchesWhatChanged, and knows files with holes, and of several parts, again.
func TestSync_FetchesWhatChanged(t *testing.T) {
	t.Parallel()
	from, to := newRoot(t, nil), newRoot(t, nil)
	large := make([]byte, 9<<20)
	fill := rand.NewChaCha8([32]byte{1})
	_, _ = fill.Read(large)
	for _, root := range []*os.Root{from, to} {
		require.NoError(t, root.WriteFile("large", large, 0o600))
		require.NoError(t, root.WriteFile("other", large[:5<<20], 0o600))
		sparse, err := root.Create("sparse")
		require.NoError(t, err)
		_, err = sparse.WriteAt([]byte("data"), 6<<20+4096)
		require.NoError(t, err)
		require.NoError(t, sparse.Truncate(11<<20))
		require.NoError(t, sparse.Close())
	}
	base := saved(t, from, nil).manifest
	require.NoError(t, from.WriteFile("other", []byte("new"), 0o600))
	next := saved(t, from, nil)
	next.bodies.got = 0
	changes, err := next.to(t, to, base, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, changes.Written)
	require.LessOrEqual(t, next.bodies.got, 2, "that of the file, and what the sparse one has")
	content, err := to.ReadFile("other")
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	changes, err = next.to(t, to, changes.Base, nil)
	require.NoError(t, err)
	require.Empty(t, changes.Written)
}

// TestSync_ContentsAreMissing: then nothing changes.
// What a Sync left that was killed is removed, once it is old.
func TestSync_RemovesWhatALostOneLeft(t *testing.T) {
	t.Parallel()
	k := newKept(t, newMemory())
	old := time.Now().Add(-48 * time.Hour)
	for _, name := range []string{".toolfleet-OLD.tmp", ".toolfleet-YOUNG.tmp", ".toolfleet-other"} {
		k.write(name+"/1", "content")
		if !strings.Contains(name, "YOUNG") {
			require.NoError(t, os.Chtimes(filepath.Join(k.dir, name), old, old))
		}
	}
	_, err := snapshot.Sync(t.Context(), k.root, nil, snapshot.Tree{}, k.bodies, nil)
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(k.dir, ".toolfleet-OLD.tmp"))
	require.DirExists(t, filepath.Join(k.dir, ".toolfleet-YOUNG.tmp"))
	require.DirExists(t, filepath.Join(k.dir, ".toolfleet-other"))
}

func TestSync_ContentsAreMissing(t *testing.T) {
	t.Parallel()
	next := saved(t, newRoot(t, tree{"a": {body: "1"}, "b": {body: "2"}}), nil)
	clear(next.bodies.bodies)
	to := newRoot(t, tree{"a": {body: "0"}})
	_, err := next.to(t, to, saved(t, to, nil).manifest, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, tree{"a": {body: "0"}}.filled(), content(t, to))
}
