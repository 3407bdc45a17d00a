package lane_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker that stops while lanes are on their way to it hands those back: the next one need not
// wait until their leases end.
func TestDrain_WhatIsOnItsWayIsHandedBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(time.Hour)
	p := f.publisher()
	var calls []*protocol.Call
	for round := range 8 {
		begun := make(chan struct{}, 1)
		h := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
			select {
			case begun <- struct{}{}:
			default:
			}
			return succeed(run)
		}), lane.Options{Slots: 64})
		out := make([]lane.Outgoing, 200)
		for i := range out {
			out[i].Call = newCall("s", exclusive(fmt.Sprintf("account/%d-%d", round, i)))
			calls = append(calls, out[i].Call)
		}
		putting := make(chan []error, 1)
		go func() { putting <- p.Enqueue(t.Context(), out) }()
		<-begun
		h.stop()
		for _, err := range <-putting {
			require.NoError(t, err)
		}
	}
	f.hold(succeeds, lane.Options{Slots: 64})
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}

// What a worker kills when its drain is over goes on elsewhere at once, not when a lease ends.
func TestDrain_AnotherWorkerGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(time.Hour)
	p := f.publisher()
	took := make([]time.Duration, 9)
	for i := range took {
		call := newCall("s", exclusive("account/a"))
		started, again := make(chan struct{}), make(chan time.Time, 1)
		h, err := lane.NewHolder(t.Context(), f.connect(), hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
			close(started)
			<-ctx.Done()
			return interrupted(ctx, run)
		}), lane.Options{Worker: "drains"})
		require.NoError(t, err)
		ctx, drain := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx, ctx) }()
		put(t, p, call)
		<-started
		next := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
			again <- time.Now()
			return succeed(run)
		}), lane.Options{Worker: "next"})
		begun := time.Now()
		drain()
		took[i] = (<-again).Sub(begun)
		require.Equal(t, 2, f.await(p, call).Attempt)
		require.NoError(t, <-done)
		next.stop()
	}
	slices.Sort(took)
	t.Logf("another worker goes on %s after the drain, at most %s", took[len(took)/2], took[len(took)-1])
}
