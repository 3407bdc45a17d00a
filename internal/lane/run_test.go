package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestRun_LeaseEndMovesWithRenewals, and lies ahead for as long as the lane is held.
func TestRun_LeaseEndMovesWithRenewals(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(briefLease)
	moved := make(chan time.Duration, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		first := run.LeaseEnd()
		for ctx.Err() == nil && !run.LeaseEnd().After(first) {
			<-time.After(time.Millisecond)
		}
		moved <- time.Until(run.LeaseEnd())
		return succeed(run)
	}), lane.Options{})
	put(t, p, newCall("s", exclusive("account/acme")))
	left := <-moved
	require.Positive(t, left)
	require.Less(t, left, briefLease)
}

// TestRun_FenceGrowsWithEachHolder: after a worker was lost, and after one has let the lane go.
func TestRun_FenceGrowsWithEachHolder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	fences := make(chan uint64, 1)
	tells := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		fences <- run.Fence
		if run.Attempt == 1 && run.Call.Tool == "lost" {
			<-ctx.Done()
		}
		return succeed(run)
	})
	call := func(tool string) *protocol.Call {
		c := newCall("s", exclusive("account/acme"))
		c.Tool = tool
		put(t, p, c)
		return c
	}
	f.ensurePool(briefLease)
	frozen := f.connect()
	h, err := lane.NewHolder(t.Context(), frozen, tells, lane.Options{Worker: "lost", Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	lost := make(chan error, 1)
	go func() { lost <- h.Run(ctx, ctx) }()
	again := call("lost")
	first := <-fences
	frozen.Close()
	second := f.hold(tells, lane.Options{Worker: "second"})
	after := <-fences
	require.Greater(t, after, first)
	f.await(p, again)
	second.stop()
	f.hold(tells, lane.Options{Worker: "third"})
	last := call("next")
	require.Greater(t, <-fences, after)
	f.await(p, last)
	stop()
	require.NoError(t, <-lost)
}
