package workspace_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const forkName = protocol.Lane("sandbox/fork")

var fork = wire.HashLane(forkName)

func all(string) bool { return true }

// forked is the content of the files of a lane's workspace, restored.
func forked(t *testing.T, store *workspace.Store, lane wire.LaneHash, call protocol.CallID) map[string]string {
	t.Helper()
	tree, err := store.At(t.Context(), lane, call)
	require.NoError(t, err)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	_, err = snapshot.Restore(t.Context(), root, tree, snapshot.Index{}, store, nil)
	require.NoError(t, err)
	require.NoError(t, root.Close())
	files := map[string]string{}
	for name := range tree {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		files[name] = string(content)
	}
	return files
}

// A fork outlives what it was made of, and its garbage is not removed before both are gone.
func TestFork_SharesBodiesThatStay(t *testing.T) {
	t.Parallel()
	store := open(t)
	large := string(random(300_000))
	w := take(t, store, 1)
	w.append("large", large)
	w.append("small", "one\n")
	require.NoError(t, w.commit("c1"))
	w.append("small", "two\n")
	require.NoError(t, w.commit("c2"))
	w.append("small", "three\n")
	require.NoError(t, w.commit("c3"))

	require.ErrorIs(t, store.Fork(t.Context(), lane, "other", forkName, all), workspace.ErrNone)
	require.NoError(t, store.Fork(t.Context(), lane, "c2", forkName, all))
	require.ErrorIs(t, store.Fork(t.Context(), lane, "c2", forkName, all), workspace.ErrExists)
	require.NoError(t, store.Remove(t.Context(), lane, 1))
	_, err := store.Sweep(t.Context(), 0)
	require.NoError(t, err)
	want := map[string]string{"large": large, "small": "one\ntwo\n"}
	require.Equal(t, want, forked(t, store, fork, ""))
	require.Equal(t, want, forked(t, store, fork, "c2"), "the call is where the fork begins")

	taken, err := store.Take(t.Context(), forkName, "w", 1)
	require.NoError(t, err)
	require.Len(t, taken.Tree(), 2)
	require.NoError(t, taken.Commit(t.Context(), &snapshot.Delta{Removed: snapshot.Names{"large"}}, result("c4")))
	require.NoError(t, store.Remove(t.Context(), fork, 1))
	removed, err := store.Sweep(t.Context(), 0)
	require.NoError(t, err)
	require.NotZero(t, removed)
	removed, err = store.Sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Zero(t, removed)
}

// Many workspaces of one need no more bodies than that one.
func TestFork_ManyOfOneAddNoBodies(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	w.append("large", string(random(300_000)))
	w.append("small", "one\n")
	require.NoError(t, w.commit("c1"))
	lanes := []wire.LaneHash{lane}
	for i := range 200 {
		to := protocol.Lane("sandbox/f" + strconv.Itoa(i))
		require.NoError(t, store.Fork(t.Context(), lane, "", to, all))
		lanes = append(lanes, wire.HashLane(to))
	}
	for _, l := range lanes {
		require.NoError(t, store.Remove(t.Context(), l, 1))
	}
	removed, err := store.Sweep(t.Context(), 0)
	require.NoError(t, err)
	require.Equal(t, 3, removed, "the contents, the list of the files, and an empty list")
}

// Paths that are not wanted are left out.
func TestFork_OfSomePaths(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	w.append("a", "one\n")
	w.append("b", "two\n")
	require.NoError(t, w.commit("c1"))
	require.NoError(t, store.Fork(t.Context(), lane, "", forkName, func(path string) bool { return path == "b" }))
	require.Equal(t, map[string]string{"b": "two\n"}, forked(t, store, fork, ""))
}

// A base that is missing, or another, ends at once, with its name.
func TestTake_OfABaseThatIsNotThere(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name, "")
	require.NoError(t, err)
	require.NoError(t, store.Begin(t.Context(), forkName, snapshot.Tree{"d": {Type: protocol.TypeDir}}, "c"))
	infos, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(string) bool { return true })
	require.NoError(t, err)
	require.Len(t, infos, 1)
	_, err = natsio.PutObject(t.Context(), f.JS, wire.BodiesBucket(f.Name), infos[0].Name, bytes.NewReader([]byte("another")))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = store.Take(ctx, forkName, "w", 1)
	require.ErrorIs(t, err, snapshot.ErrCorrupt)
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), infos[0].Name))
	_, err = store.Take(ctx, forkName, "w", 1)
	require.ErrorIs(t, err, workspace.ErrMissing)
	require.NoError(t, ctx.Err(), "it is known at once")
	_, err = store.At(t.Context(), fork, "")
	require.ErrorIs(t, err, workspace.ErrMissing)
}
