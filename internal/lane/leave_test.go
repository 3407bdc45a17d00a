package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker kills a call and hands its lane over, while nothing can be stored about claims, for as
// long as it takes. The next attempt counts as the second.
func TestLeave_WhatWasKilledIsCountedHoweverLateItIsHandedOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	stream, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(t, err)
	whole := stream.CachedInfo().Config
	without := whole
	without.Subjects = []string{wire.HeartbeatsFilter(factFleet, protocol.DefaultPool)}
	tries := f.overhear("tf.claim.>")
	p, call := f.publisher(), newCall("s", exclusive("account/a"))
	put(t, p, call)
	attempts := make(chan int, 2)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if attempts <- run.Attempt; run.Attempt > 1 {
			return succeed(run)
		}
		if _, err := f.js.UpdateStream(t.Context(), without); err != nil {
			t.Errorf("claims cannot be shut out: %v", err)
		}
		run.Abandon()
		<-ctx.Done()
		return interrupted(ctx, run)
	}), lane.Options{})
	require.Equal(t, 1, <-attempts)
	require.Eventually(t, func() bool { return len(tries.all()) >= 3 }, patience, 10*time.Millisecond, "it gave up") // the claim, and two tries
	_, err = f.js.UpdateStream(t.Context(), whole)
	require.NoError(t, err)
	result := f.await(p, call)
	require.Equal(t, protocol.StatusOK, result.Status)
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}
