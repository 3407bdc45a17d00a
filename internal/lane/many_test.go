package lane_test

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A lane that is held costs nothing: its worker's one heartbeat is renewed for all of them, so four
// hundred lanes take fewer than a hundred messages a second, and fewer than twenty on a machine
// that does little else.
func TestLane_ManyHeldLanesCostLittle(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	nc := f.connect()
	const lanes, lease, most = 400, natsio.DefaultAckWait, 100.0 // one for each lane in a fifth of a lease is 200 a second
	var started atomic.Int32
	release := make(chan struct{})
	h, err := lane.NewHolder(t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		started.Add(1)
		select {
		case <-release:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Worker: "w", Slots: lanes, Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()

	var calls []*protocol.Call
	for i := range lanes {
		calls = append(calls, newCall("s", exclusive(fmt.Sprintf("account/%d", i))))
	}
	put(t, p, calls...)
	require.Eventually(t, func() bool { return started.Load() == lanes }, patience, 5*time.Millisecond)
	stepAside(t, lease/2) // what a claim costs is over
	least := math.Inf(1)
	for range 6 {
		before, begun := nc.Stats(), time.Now()
		stepAside(t, lease/2)
		after := nc.Stats()
		messages := after.InMsgs + after.OutMsgs - before.InMsgs - before.OutMsgs
		if least = min(least, float64(messages)/time.Since(begun).Seconds()); least < most {
			break // what else a busy machine makes of it does not come every time
		}
	}
	require.EqualValues(t, lanes, started.Load(), "all of them are held all the time")
	t.Logf("%.1f messages a second", least)
	require.Less(t, least, most)
	require.Greater(t, least, 0.2, "renewed")
	close(release)
	for _, call := range calls {
		f.await(p, call)
	}
	stop()
	require.NoError(t, <-done)
}
