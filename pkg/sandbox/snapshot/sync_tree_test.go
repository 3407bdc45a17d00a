package snapshot_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// saved is what a directory has, in bodies.
func saved(tb testing.TB, root *os.Root, bodies *memory, opts *snapshot.Options) (snapshot.Tree, snapshot.Manifest) {
	tb.Helper()
	options := &snapshot.SaveOptions{}
	if opts != nil {
		options.Skip = opts.Skip
	}
	kept := snapshot.Tree{}
	delta, err := snapshot.Save(tb.Context(), root, kept, snapshot.Index{}, bodies, options)
	require.NoError(tb, err)
	require.NoError(tb, delta.Outline(tb.Context(), bodies))
	kept.Apply(delta, "")
	manifest, err := kept.Manifest(tb.Context(), bodies)
	require.NoError(tb, err)
	return kept, manifest
}

// TestSyncTree_FetchesWhatChanged, and knows files with holes, and of several parts, again.
func TestSyncTree_FetchesWhatChanged(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
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
	_, base := saved(t, from, bodies, nil)
	_, packed, _ := pack(t, from, nil)
	require.Equal(t, packed, base, "a tree and an archive tell the same digests")

	require.NoError(t, from.WriteFile("other", []byte("new"), 0o600))
	next, _ := saved(t, from, bodies, nil)
	bodies.got = 0
	changes, err := snapshot.SyncTree(t.Context(), to, base, next, bodies, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, changes.Written)
	require.LessOrEqual(t, bodies.got, 2, "that of the file, and what the sparse one has")
	content, err := os.ReadFile(filepath.Join(to.Name(), "other"))
	require.NoError(t, err)
	require.Equal(t, "new", string(content))
	changes, err = snapshot.SyncTree(t.Context(), to, changes.Archive, next, bodies, nil)
	require.NoError(t, err)
	require.Empty(t, changes.Written)
}

// TestSyncTree_ContentsAreMissing: then nothing changes.
func TestSyncTree_ContentsAreMissing(t *testing.T) {
	t.Parallel()
	bodies := newMemory()
	next, _ := saved(t, newRoot(t, tree{"a": {body: "1"}, "b": {body: "2"}}), bodies, nil)
	clear(bodies.bodies)
	to := newRoot(t, tree{"a": {body: "0"}})
	_, base := saved(t, to, newMemory(), nil)
	_, err := snapshot.SyncTree(t.Context(), to, base, next, bodies, nil)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Equal(t, tree{"a": {body: "0"}}.filled(), content(t, to))
}
