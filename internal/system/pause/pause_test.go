package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
)

func TestFor_WaitsForAsLongAsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		require.True(t, pause.For(t.Context(), time.Hour))
		require.Equal(t, time.Hour, time.Since(begun))
	})
}

func TestFor_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		begun := time.Now()
		require.False(t, pause.For(ctx, time.Hour))
		require.Equal(t, time.Minute, time.Since(begun))
	})
}

func TestFor_NoTimeAtAllTellsWhetherTheContextGoesOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	require.True(t, pause.For(ctx, 0))
	require.True(t, pause.For(ctx, -time.Second))
	cancel()
	require.False(t, pause.For(ctx, 0))
	require.False(t, pause.For(ctx, time.Hour))
}

func TestUntil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, tries := time.Now(), 0
		require.True(t, pause.Until(t.Context(), time.Minute, func() bool { tries++; return tries == 3 }))
		require.Equal(t, 2*time.Minute, time.Since(begun))
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		tries = 0
		require.False(t, pause.Until(ctx, time.Minute, func() bool { tries++; return false }))
		require.Equal(t, 2, tries)
		require.True(t, pause.Until(ctx, time.Minute, func() bool { return true }), "one try is made in any case")
	})
}
