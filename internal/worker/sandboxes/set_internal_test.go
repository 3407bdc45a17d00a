package sandboxes

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/workspace"
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
	require.ErrorIs(t, s.Remove(full{t.Context(), workspace, files}, "sandbox/one", 1), context.Canceled)
	left, err := os.ReadDir(workspace)
	require.NoError(t, err)
	require.Len(t, left, files-1)
	require.NoError(t, s.Remove(t.Context(), "sandbox/one", 1))
	require.NoDirExists(t, workspace)
}

// What a killed worker left is removed: temporary directories, and copies of workspaces that the
// fleet stores. What the lane of a directory in place has here is stored nowhere else.
func TestEvict_WhatAKilledWorkerLeft(t *testing.T) {
	t.Parallel()
	o := Options{
		Data: t.TempDir(), Workspaces: &workspace.Store{}, Logger: slog.New(slog.DiscardHandler),
		Settings: Settings{Driver: process.New(nil), CacheBytes: 1 << 20, Workspace: func(string) (string, bool) { return "", false }},
	}
	s, err := New(o)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	_, _, err = s.Open(t.Context(), "account/acme", 1, time.Now)
	require.NoError(t, err)
	all := filepath.Join(o.Data, "sandboxes")
	open, err := os.ReadDir(all)
	require.NoError(t, err)
	require.Len(t, open, 1)
	mkdir := func(name string, age time.Duration) {
		require.NoError(t, os.MkdirAll(filepath.Join(all, name), 0o700))
		home := filepath.Join(all, strings.Split(name, "/")[0])
		require.NoError(t, os.Chtimes(home, time.Time{}, time.Now().Add(-age)))
	}
	mkdir(temporaryOf("account/other")+"123/workspace", 0)
	mkdir("killed/workspace", 2*abandonedAge)
	mkdir("young/workspace", 0)
	mkdir("in-place/scratch", 2*abandonedAge)
	mkdir("opened/workspace", 0)
	require.NoError(t, os.WriteFile(filepath.Join(all, "opened", "index.json"), []byte(`{"bytes":8388608}`), 0o600))
	lock := flock.New(filepath.Join(o.Data, "lock"))
	t.Cleanup(func() { require.NoError(t, lock.Close()) })
	require.NoError(t, s.Evict(t.Context(), lock))
	left, err := os.ReadDir(all)
	require.NoError(t, err)
	names := []string{}
	for _, entry := range left {
		names = append(names, entry.Name())
	}
	require.ElementsMatch(t, []string{open[0].Name(), "young", "in-place"}, names)
}

// What a worker left that was killed while it filled a workspace is removed by the next import.
func TestStaging_RemovesWhatAKilledWorkerLeft(t *testing.T) {
	t.Parallel()
	o := Options{Data: t.TempDir(), Settings: Settings{Driver: process.New(nil), Workspace: func(string) (string, bool) { return "", false }}}
	s, err := New(o)
	require.NoError(t, err)
	t.Cleanup(s.CloseAll)
	b, _, err := s.Open(t.Context(), "sandbox/one", 1, time.Now)
	require.NoError(t, err)
	left, err := b.Staging()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(left, "f"), nil, 0o600))
	mine := filepath.Join(filepath.Dir(left), "import-mine")
	require.NoError(t, os.Mkdir(mine, 0o700))
	next, err := b.Staging()
	require.NoError(t, err)
	require.DirExists(t, next)
	require.NoDirExists(t, left)
	require.DirExists(t, mine)
}
