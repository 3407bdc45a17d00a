package lane_test

import (
	"context"
	"fmt"
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
		h := f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
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
		go func() { putting <- p.Put(t.Context(), out) }()
		<-begun
		h.stop()
		for _, err := range <-putting {
			require.NoError(t, err)
		}
	}
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) }), lane.Options{Slots: 64})
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}
