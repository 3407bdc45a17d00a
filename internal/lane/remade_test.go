package lane_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Somebody deletes the pool's consumer while a lane is held. A worker that has nothing to do makes
// it again, and is given what is held, as if nobody had it. It finds the claim, and leaves the
// lane.
func TestRemade_ALaneIsNotHeldTwice(t *testing.T) {
	t.Parallel()
	for name, newFleet := range map[string]func(*testing.T) *fleet{
		"one server":    newFleet,
		"three servers": func(t *testing.T) *fleet { t.Helper(); f, _ := newClusterFleet(t); return f }, //nolint:nlreturn // one line
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.ensurePool(steadyLease / 3) // a pull request that nobody answers ends after a third of it
			p := f.publisher()
			var starts atomic.Int32
			begun, end := make(chan struct{}, 9), make(chan struct{})
			work := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
				starts.Add(1)
				begun <- struct{}{}
				select {
				case <-end:
					return succeed(run)
				case <-ctx.Done():
					return interrupted(ctx, run)
				}
			})
			f.hold(work, lane.Options{})
			call := newCall("s", exclusive("account/x"))
			put(t, p, call)
			<-begun
			f.hold(work, lane.Options{}) // it waits for a lane
			stream, name := wire.CallsStream(protocol.DefaultFleet), wire.ReadyConsumer(protocol.DefaultPool)
			require.NoError(t, f.js.DeleteConsumer(t.Context(), stream, name))
			require.Eventually(t, func() bool { // it is made again, and has delivered the ready message
				c, err := f.js.Consumer(t.Context(), stream, name)
				return err == nil && c.CachedInfo().NumAckPending == 1
			}, patience, 10*time.Millisecond)
			other := newCall("s", exclusive("account/y")) // whoever takes this one is done with the other lane
			put(t, p, other)
			<-begun
			close(end)
			require.Equal(t, protocol.StatusOK, f.await(p, other).Status)
			r := f.await(p, call)
			require.Equal(t, protocol.StatusOK, r.Status)
			require.Equal(t, 1, r.Attempt)
			require.EqualValues(t, 2, starts.Load(), "started while it ran")
			f.requireQuiet()
		})
	}
}
