package workspace_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
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
	mustSweep(t, store, 0)
	want := map[string]string{"large": large, "small": "one\ntwo\n"}
	require.Equal(t, want, forked(t, store, fork, ""))
	require.Equal(t, want, forked(t, store, fork, "c2"), "the call is where the fork begins")

	taken, err := store.Take(t.Context(), forkName, "w", 1)
	require.NoError(t, err)
	require.Len(t, taken.Tree(), 2)
	require.NoError(t, taken.Commit(t.Context(), &snapshot.Delta{Removed: snapshot.Names{"large"}}, result("c4")))
	require.NoError(t, store.Remove(t.Context(), fork, 1))
	removed := mustSweep(t, store, 0)
	require.NotZero(t, removed)
	removed = mustSweep(t, store, 0)
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
	removed := mustSweep(t, store, 0)
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
	store := mustOpen(t, f, "")
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

// Sessions of one template need its bodies, and none of their own.
func TestTemplate_ManySessionsAddNoBodies(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store := mustOpen(t, f, "")
	dir := t.TempDir()
	large := string(random(300_000))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "large"), []byte(large), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "small"), []byte("one\n"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, store.TemplateFrom(t.Context(), "base", root, nil))
	require.ErrorIs(t, store.TemplateFrom(t.Context(), "base", root, nil), workspace.ErrExists)
	bodies := func() int {
		infos, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(string) bool { return true })
		require.NoError(t, err)
		return len(infos)
	}
	before := bodies()
	for i := range 500 {
		require.NoError(t, store.FromTemplate(t.Context(), "base", protocol.Lane("sandbox/l"+strconv.Itoa(i))))
	}
	require.Equal(t, before, bodies())

	require.NoError(t, store.RemoveTemplate(t.Context(), "base"))
	require.ErrorIs(t, store.RemoveTemplate(t.Context(), "base"), workspace.ErrNone)
	require.ErrorIs(t, store.FromTemplate(t.Context(), "base", "sandbox/new"), workspace.ErrNone)
	mustSweep(t, store, 0)
	require.Equal(t, before, bodies(), "they are needed still")
	tree, err := store.At(t.Context(), wire.HashLane("sandbox/l7"), "")
	require.NoError(t, err)
	content, err := snapshot.LoadBytes(t.Context(), store, tree["workspace/large"].Parts, 1<<20)
	require.NoError(t, err)
	require.Equal(t, large, string(content))
}

// A template of a session has its files, not what its shell and tools remember.
func TestTemplate_OfASession(t *testing.T) {
	t.Parallel()
	store := open(t)
	w := take(t, store, 1)
	require.NoError(t, os.Mkdir(filepath.Join(w.dir, "workspace"), 0o700))
	w.append("workspace/f", "one\n")
	w.append("shell", "secret")
	require.NoError(t, w.commit("c1"))
	require.NoError(t, store.TemplateOf(t.Context(), "of-a-session", lane))
	require.NoError(t, store.FromTemplate(t.Context(), "of-a-session", forkName))
	tree, err := store.At(t.Context(), fork, "")
	require.NoError(t, err)
	require.Len(t, tree, 2)
	require.Contains(t, tree, "workspace/f")
	list, err := store.Templates(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "of-a-session", list[0].Name)
	require.Equal(t, 1, list[0].Files)
	require.Equal(t, int64(4), list[0].Bytes)
}

// A workspace that begins with a template belongs to who began it before any worker takes it, and a
// template of a workspace is made by those who may see that.
func TestTemplate_OwnersOfWhatBeginsWithIt(t *testing.T) {
	t.Parallel()
	store := open(t)
	as := func(tenant protocol.Tenant) context.Context {
		return judge.With(t.Context(), judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: tenant, Role: judge.RoleRun})
	}
	root, err := os.OpenRoot(t.TempDir())
	require.NoError(t, err)
	defer root.Close()
	require.NoError(t, store.TemplateFrom(t.Context(), "base", root, nil))
	for name, made := range map[string]struct {
		by    context.Context //nolint:containedctx // that of the maker
		owner judge.Owner
	}{
		"sandbox/operator": {t.Context(), judge.Owner{Tenant: judge.DefaultTenant}},
		"sandbox/ann":      {as("acme"), judge.Owner{Tenant: "acme", By: "token:ann"}},
	} {
		require.NoError(t, store.FromTemplate(made.by, "base", protocol.Lane(name)))
		owner, err := store.Owner(t.Context(), wire.HashLane(protocol.Lane(name)))
		require.NoError(t, err)
		require.Equal(t, made.owner, owner)
	}
	anns := wire.HashLane("sandbox/ann")
	require.ErrorIs(t, store.TemplateOf(as("other"), "stolen", anns), judge.ErrRefused)
	require.NoError(t, store.TemplateOf(as("acme"), "own", anns))
}

func TestTemplate_Names(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "node-20", "0_x", strings.Repeat("a", 63)} {
		require.NoError(t, workspace.CheckTemplate(good))
	}
	for _, bad := range []string{"", "-a", "A", "a.b", "a*", "a>", "a b", "../a", "ä", strings.Repeat("a", 64)} {
		require.ErrorContains(t, workspace.CheckTemplate(bad), "1 to 63 lower case letters", bad)
	}
}
