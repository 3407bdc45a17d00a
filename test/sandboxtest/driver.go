//go:build unix

//nolint:thelper // these are tests
package sandboxtest

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func testDriver(t *testing.T, s suite) {
	t.Run("probe proves a level and tells what there is to know", func(t *testing.T) {
		t.Parallel()
		d := s.newDriver(t)
		caps, err := d.Probe(t.Context())
		require.NoError(t, err)
		require.Equal(t, d.Name(), caps.Driver)
		if caps.Level < isolation.LevelFull {
			require.NotEmpty(t, caps.Warnings)
		}
	})
	t.Run("a level that is not reached is refused", func(t *testing.T) {
		t.Parallel()
		d := s.newDriver(t)
		caps, err := d.Probe(t.Context())
		require.NoError(t, err)
		spec := isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Require: caps.Level + 1}
		_, err = d.Open(t.Context(), spec)
		require.ErrorIs(t, err, isolation.ErrLevel)
		spec.Require = caps.Level
		opened, err := d.Open(t.Context(), spec)
		require.NoError(t, err)
		require.NoError(t, opened.Close())
	})
	t.Run("a directory that does not exist is an error", func(t *testing.T) {
		t.Parallel()
		d, there, missing := s.newDriver(t), t.TempDir(), t.TempDir()+"/missing"
		for _, spec := range []isolation.Spec{
			{ID: "x", Workspace: missing, Scratch: there},
			{ID: "x", Workspace: there, Scratch: missing},
			{ID: "x", Workspace: there},
			{ID: "x", Scratch: there},
		} {
			_, err := d.Open(t.Context(), spec)
			require.Error(t, err, "%+v", spec)
		}
	})
	t.Run("a negative limit is refused", func(t *testing.T) {
		t.Parallel()
		spec := isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir(), Limits: sandbox.Limits{Disk: -1}}
		_, err := s.newDriver(t).Open(t.Context(), spec)
		require.ErrorContains(t, err, "Limits.Disk -1: must be 0 (the default) or more")
	})
	t.Run("an ended context opens nothing", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.newDriver(t).Open(ctx, isolation.Spec{ID: "x", Workspace: t.TempDir(), Scratch: t.TempDir()})
		require.ErrorIs(t, err, context.Canceled)
	})
}
