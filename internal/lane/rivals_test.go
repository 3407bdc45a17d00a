package lane_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Guard: servers renew the lease of a ready message for whoever asks, also for whoever got it before somebody else did. Of two
// workers that got it one after the other, within a lease, only the first holds the lane.
func TestCluster_OfTwoDeliveriesWithinALeaseOneHoldsTheLane(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	f, _ := newClusterFleet(t)
	f.ensurePool(lease)
	p := f.publisher()
	call := newCall("s", exclusive("account/1"))
	put(t, p, call)
	former := f.take(f.pool(lease)) // marks are stored by whoever comes after it
	require.NoError(t, former.Nak())

	begun, goOn := make(chan struct{}), make(chan struct{})
	f.hold(executorFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(begun)
		select {
		case <-goOn:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Worker: "first"})
	await(t, begun, "the call is not started")

	var twice atomic.Bool
	left := make(chan struct{})
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		twice.Store(true)
		return succeed(run)
	}), lane.Options{Worker: "second", Lost: func(context.Context, protocol.Lane) { close(left) }})
	require.NoError(t, f.nc.Publish(former.Reply(), []byte("-NAK"))) // what servers do by themselves when another one leads
	await(t, left, "the second worker keeps the lane")

	close(goOn)
	require.Equal(t, protocol.WorkerID("first"), f.await(p, call).WorkerID)
	require.False(t, twice.Load(), "started while it ran")
	f.requireQuiet()
}
