package workspace_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Sessions of one template need its bodies, and none of their own.
func TestTemplate_ManySessionsAddNoBodies(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name, "")
	require.NoError(t, err)
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
	_, err = store.Sweep(t.Context(), 0)
	require.NoError(t, err)
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

func TestTemplate_Names(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"a", "node-20", "0_x", strings.Repeat("a", 63)} {
		require.NoError(t, workspace.CheckTemplate(good))
	}
	for _, bad := range []string{"", "-a", "A", "a.b", "a*", "a>", "a b", "../a", "ä", strings.Repeat("a", 64)} {
		require.ErrorContains(t, workspace.CheckTemplate(bad), "1 to 63 lower case letters", bad)
	}
}
