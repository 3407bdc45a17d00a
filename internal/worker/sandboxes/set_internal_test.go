package sandboxes

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/process"
)

func TestReplace_LeavesTheWorkspaceOfALaneThatIsLost(t *testing.T) {
	t.Parallel()
	workspace, other := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(other, "a"), nil, 0o600))
	o := Options{Data: t.TempDir(), Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return workspace, true }}}
	s, err := New(o)
	require.NoError(t, err)
	ctx, lose := context.WithCancel(t.Context())
	b, _, err := s.Open(ctx, "sandbox/one", 1, time.Now)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	lose()
	require.ErrorIs(t, b.Replace(ctx, other), context.Canceled)
	require.FileExists(t, filepath.Join(other, "a"))
	_, _, err = s.Open(ctx, "sandbox/one", 1, time.Now)
	require.ErrorIs(t, err, context.Canceled, "nor is a sandbox opened")
	require.NoError(t, b.Replace(t.Context(), other))
	require.FileExists(t, filepath.Join(workspace, "a"))
}

// full is a context until something of a directory is gone.
type full struct {
	context.Context //nolint:containedctx // it is one

	dir  string
	want int
}

func (c full) Err() error {
	if entries, err := os.ReadDir(c.dir); err != nil || len(entries) < c.want {
		return context.Canceled
	}
	return nil
}

func TestRemove_LeavesTheWorkspaceOfALaneThatIsLostMeanwhile(t *testing.T) {
	t.Parallel()
	o := Options{Data: t.TempDir(), Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return "", false }}}
	s, err := New(o)
	require.NoError(t, err)
	b, _, err := s.Open(t.Context(), "sandbox/one", 1, time.Now)
	require.NoError(t, err)
	workspace := b.Workspace()
	const files = 10
	for i := range files {
		require.NoError(t, os.WriteFile(filepath.Join(workspace, strconv.Itoa(i)), nil, 0o600))
	}
	require.ErrorIs(t, s.Remove(full{t.Context(), workspace, files}, "sandbox/one"), context.Canceled)
	left, err := os.ReadDir(workspace)
	require.NoError(t, err)
	require.Len(t, left, files-1)
	require.NoError(t, s.Remove(t.Context(), "sandbox/one"))
	require.NoDirExists(t, workspace)
}
