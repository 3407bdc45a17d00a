package snapshot_test

import (
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// node is what a test wants at a path.
type node struct {
	dir    bool
	link   string
	body   string
	mode   fs.FileMode // 0 means 0644 and 0755; see noMode
	noMode bool        // mode 0000
}

func (n node) perm() fs.FileMode {
	switch {
	case n.noMode:
		return 0
	case n.mode != 0:
		return n.mode
	case n.dir:
		return 0o755
	default:
		return 0o644
	}
}

// tree is what a test wants in a directory.
type tree map[string]node

func openRoot(tb testing.TB, dir string) *os.Root {
	tb.Helper()
	root, err := os.OpenRoot(dir)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, root.Close()) })
	return root
}

func newRoot(tb testing.TB, want tree) *os.Root {
	tb.Helper()
	root := openRoot(tb, tb.TempDir())
	tb.Cleanup(func() { unlockAll(tb, root.Name()) })
	build(tb, root, want)
	return root
}

// unlockAll lets a directory be removed, whatever the modes in it are.
func unlockAll(tb testing.TB, dir string) {
	tb.Helper()
	require.NoError(tb, os.Chmod(dir, 0o700))
	entries, err := os.ReadDir(dir)
	require.NoError(tb, err)
	for _, e := range entries {
		if e.IsDir() {
			unlockAll(tb, filepath.Join(dir, e.Name()))
		}
	}
}

// build makes a tree, parents first, and sets the modes in the end.
func build(tb testing.TB, root *os.Root, want tree) {
	tb.Helper()
	for _, name := range sortedKeys(want) {
		n := want[name]
		switch {
		case n.dir:
			require.NoError(tb, root.Mkdir(name, 0o700))
		case n.link != "":
			require.NoError(tb, root.Symlink(n.link, name))
		default:
			require.NoError(tb, root.WriteFile(name, []byte(n.body), 0o600))
		}
	}
	keys := sortedKeys(want)
	for _, name := range slices.Backward(keys) {
		if n := want[name]; n.link == "" {
			require.NoError(tb, root.Chmod(name, n.perm()))
		}
	}
}

// content returns what is in a directory, read without the package under test.
func content(tb testing.TB, root *os.Root) tree {
	tb.Helper()
	got := tree{}
	base := root.Name()
	err := filepath.WalkDir(base, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == base {
			return err
		}
		name, err := filepath.Rel(base, p)
		require.NoError(tb, err)
		info, err := d.Info()
		require.NoError(tb, err)
		n := node{dir: d.IsDir()}
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			n.link, err = os.Readlink(p)
			require.NoError(tb, err)
		case 0:
			data, err := os.ReadFile(p)
			require.NoError(tb, err)
			n.body = string(data)
		default:
		}
		if n.link == "" {
			n.mode, n.noMode = info.Mode().Perm(), info.Mode().Perm() == 0
		}
		got[filepath.ToSlash(name)] = n
		return nil
	})
	require.NoError(tb, err)
	return got
}

// filled returns the tree with its default modes written out.
func (t tree) filled() tree {
	out := tree{}
	for name, n := range t {
		if n.link == "" {
			n.mode = n.perm()
		}
		out[name] = n
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// large is more than what is copied at a time, and does not compress.
func large() []byte {
	data := make([]byte, 3<<20)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data) // it cannot fail
	return data
}

// copied is what a directory has: a tree in bodies of its own, and its manifest.
type copied struct {
	tree     snapshot.Tree
	manifest snapshot.Manifest
	bodies   *memory
}

func saved(tb testing.TB, root *os.Root, options *snapshot.Options) copied {
	tb.Helper()
	c := copied{tree: snapshot.Tree{}, bodies: newMemory()}
	delta, err := snapshot.Save(tb.Context(), root, c.tree, snapshot.Index{}, c.bodies, options)
	require.NoError(tb, err)
	require.NoError(tb, delta.Outline(tb.Context(), c.bodies))
	c.tree.Apply(delta, "")
	c.manifest, err = c.tree.Manifest(tb.Context(), c.bodies)
	require.NoError(tb, err)
	return c
}

// to brings the changes since base into a directory.
func (c copied) to(tb testing.TB, root *os.Root, base snapshot.Manifest, options *snapshot.Options) (snapshot.Changes, error) {
	tb.Helper()
	require.NoError(tb, c.tree.Validate(snapshot.Limits{}))
	return snapshot.Sync(tb.Context(), root, base, c.tree, c.bodies, options)
}

// restored is a directory that is made anew.
func (c copied) restored(tb testing.TB) *os.Root {
	tb.Helper()
	root := newRoot(tb, nil)
	_, err := snapshot.Restore(tb.Context(), root, c.tree, snapshot.Index{}, c.bodies, nil)
	require.NoError(tb, err)
	return root
}
