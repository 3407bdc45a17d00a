package workspace_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
)

func idle(context.Context) error { return nil }

// TestMove_ThereAndBack: workspaces, their history and what is new go with the bodies.
func TestMove_ThereAndBack(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	w := take(t, store, 1)
	large := string(random(5 << 20))
	require.NoError(t, w.root.WriteFile("large", []byte(large), 0o600))
	require.NoError(t, w.commit("c1"))

	moved, err := workspace.Move(t.Context(), f.NC, f.Name, url, idle)
	require.NoError(t, err)
	require.Equal(t, workspace.Moved{From: "nats:", Copied: 2}, moved)
	require.Equal(t, 2, store3.keys(t))
	store, err = workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	require.NoError(t, natsio.DeleteObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), bodiesOf(t, f)...))
	w = take(t, store, 2)
	require.Equal(t, large, w.content("large"))
	more := string(random(1 << 20))
	require.NoError(t, w.root.WriteFile("more", []byte(more), 0o600))
	require.NoError(t, w.commit("c2"))
	require.NoError(t, workspace.Bind(t.Context(), f.NC, f.Name, url), "workers are told the new place")
	_, err = workspace.Move(t.Context(), f.NC, f.Name, url, idle)
	require.ErrorContains(t, err, "already")

	moved, err = workspace.Move(t.Context(), f.NC, f.Name, "nats:", idle)
	require.NoError(t, err)
	require.Equal(t, workspace.Moved{From: url, Copied: 3}, moved)
	require.Len(t, bodiesOf(t, f), 3)
	store, err = workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	w = take(t, store, 3)
	require.Equal(t, large, w.content("large"))
	require.Equal(t, more, w.content("more"))
}

// TestMove_NobodyWritesMeanwhile: who begins while bodies are moved is told, and a fleet that does
// not stand still, or a move that was cut short, loses nothing.
func TestMove_NobodyWritesMeanwhile(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	url, store3 := s3(t)
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	require.NoError(t, store.Put(t.Context(), "NAME", []byte("body")))
	busy := errors.New("a worker runs")
	_, err = workspace.Move(t.Context(), f.NC, f.Name, url, func(ctx context.Context) error {
		_, err := workspace.Open(ctx, f.NC, f.Name)
		require.ErrorIs(t, err, workspace.ErrMoving)
		require.ErrorIs(t, workspace.Bind(ctx, f.NC, f.Name, ""), workspace.ErrMoving)
		return busy
	})
	require.ErrorIs(t, err, busy)
	require.Zero(t, store3.keys(t))
	_, err = workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err, "it stays where it was")

	cut, cancel := context.WithCancel(t.Context())
	_, err = workspace.Move(cut, f.NC, f.Name, url, func(context.Context) error { cancel(); return nil })
	require.ErrorIs(t, err, context.Canceled)
	_, err = workspace.Open(t.Context(), f.NC, f.Name)
	require.ErrorIs(t, err, workspace.ErrMoving)
	_, err = workspace.Move(t.Context(), f.NC, f.Name, "nats:", idle)
	require.ErrorIs(t, err, workspace.ErrMoving)
	moved, err := workspace.Move(t.Context(), f.NC, f.Name, url, idle)
	require.NoError(t, err)
	require.Equal(t, 1, moved.Copied)
	store, err = workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	body, err := store.Get(t.Context(), "NAME")
	require.NoError(t, err)
	require.Equal(t, "body", string(body))
}

// bodiesOf are the names of the bodies in a fleet's own servers.
func bodiesOf(t *testing.T, f *natsiotest.Fleet) (names []string) {
	t.Helper()
	infos, err := natsio.ListObjects(t.Context(), f.JS, wire.BodiesBucket(f.Name), func(string) bool { return true })
	require.NoError(t, err)
	for _, info := range infos {
		names = append(names, info.Name)
	}
	return names
}
