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

// TestLane_KeptLaneIsHeldUntilNothingLivesThere covers an idle lane whose worker does not let lanes
// linger at all.
func TestLane_KeptLaneIsHeldUntilNothingLivesThere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var keep atomic.Bool
	keep.Store(true)
	asked := make(chan struct{}, 1)
	host := succeeds
	host.mustHold = func(l protocol.Lane) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return l == "sandbox/a" && keep.Load()
	}
	h := f.hold(host, lane.Options{})
	kept, other := newCall("s", exclusive("sandbox/a")), newCall("s", exclusive("sandbox/b"))
	put(t, p, kept, other)
	f.await(p, kept)
	f.await(p, other)
	require.Eventually(t, func() bool { return h.Held() == 1 }, patience, time.Millisecond, "the other lane is released")
	for range 3 { // as often as it is looked at while idle
		<-asked
	}
	require.Equal(t, 1, h.Held())
	again := newCall("s", exclusive("sandbox/a"))
	put(t, p, again)
	f.await(p, again)
	keep.Store(false)
	f.requireQuiet()
}

// TestLane_KeptLaneLeavesSlotsToOthers has one slot, and a lane that always has work
// and must not be let go.
func TestLane_KeptLaneLeavesSlotsToOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var keep atomic.Bool
	keep.Store(true)
	host := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.Lane() == "sandbox/a" {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return succeed(run)
	})
	host.mustHold = func(l protocol.Lane) bool { return l == "sandbox/a" && keep.Load() }
	f.hold(host, lane.Options{Slots: 1})
	makesWay(t, f, p, "sandbox/a", "sandbox/b")
	keep.Store(false)
	f.requireQuiet()
}
