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

// Somebody deletes the pool's consumer while a lane is held. A worker that has nothing to do makes it again, and gets what is held from it, as
// if nobody had it.
func TestRemade_ALaneIsNotHeldTwice(t *testing.T) {
	t.Parallel()
	for name, newFleet := range map[string]func(*testing.T) *fleet{
		"one server":    newFleet,
		"three servers": func(t *testing.T) *fleet { t.Helper(); f, _ := newClusterFleet(t); return f }, //nolint:nlreturn // one line
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.ensurePool(5 * time.Second)
			p := f.publisher()
			var running, most, starts atomic.Int32
			begun := make(chan struct{}, 9)
			attempts := make(chan int, 9)
			work := executorFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				attempts <- run.Attempt
				begun <- struct{}{}
				if starts.Add(1) == 1 {
					<-ctx.Done()
					return interrupted(ctx, run)
				}
				return succeed(run)
			})
			f.hold(work, lane.Options{})
			call := newCall("s", exclusive("account/x"))
			put(t, p, call)
			<-begun
			f.hold(work, lane.Options{}) // it waits for a lane
			stepAside(t, 2*time.Second)  // both know the consumer
			stream := protocol.DefaultFleet.CallsStream()
			require.NoError(t, f.js.DeleteConsumer(t.Context(), stream, protocol.DefaultFleet.ReadyConsumer(protocol.DefaultPool)))
			require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
			require.EqualValues(t, 1, most.Load(), "started while it ran")
			require.Equal(t, 1, <-attempts)
			require.Equal(t, 2, <-attempts)
			f.requireQuiet()
		})
	}
}

// A lane was handed back unstarted. By a consumer that was made again it is delivered for the first time once more, and its worker is lost in
// the middle. The mark of that earlier first delivery does not say that nothing was started by this one.
func TestRemade_AnEarlierHandbackHidesNoStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	put(t, p, call)
	meta, err := f.take(f.pool(briefLease)).Metadata()
	require.NoError(t, err)
	_, err = f.js.Publish(t.Context(), factFleet.HandbackSubject(call.Pool, call.Lane().Hash(), meta.Sequence.Stream, meta.NumDelivered), nil)
	require.NoError(t, err)
	require.NoError(t, f.js.DeleteConsumer(t.Context(), factFleet.CallsStream(), factFleet.ReadyConsumer(pool)))
	f.pool(briefLease)
	f.loseAt(briefLease)
	f.hold(succeeds, lane.Options{AckWait: briefLease})
	require.Equal(t, 2, f.await(p, call).Attempt)
	f.requireQuiet()
}
