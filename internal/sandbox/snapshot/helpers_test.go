package snapshot_test

import (
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
)

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

func saved(tb testing.TB, root *os.Root, options *snapshot.SaveOptions) copied {
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
