package lane_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// More calls wait in a lane than its holder has in hand at once. One of them is cancelled that it has not read yet: once
// the request is accepted the call does not start, although the request is stored behind all of them.
func TestCancel_BeyondWhatIsInHand(t *testing.T) {
	t.Parallel()
	const waiting, at = 1000, 350
	for name, held := range map[string]bool{"while the lane is held": true, "before it is claimed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			x := exclusive("account/x")
			first := newCall("s", x)
			started, release := make(chan struct{}), make(chan struct{})
			ran := make(chan protocol.CallID, 2*waiting)
			hold := func() {
				f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
					if run.Call.ID == first.ID {
						close(started)
						<-release
					}
					ran <- run.Call.ID
					return succeed(run)
				}), lane.Options{})
			}
			put(t, p, first)
			if held {
				hold()
				<-started
			}
			calls := make([]*protocol.Call, waiting)
			for i := range calls {
				calls[i] = newCall("s", x)
			}
			put(t, p, calls...)
			require.NoError(t, p.Cancel(t.Context(), calls[at]))
			if !held {
				hold()
				<-started
			}
			close(release)
			result := f.await(p, calls[at])
			require.Equal(t, protocol.StatusCancelled, result.Status, "%v", result.Error)
			f.await(p, calls[waiting-1])
			for range waiting {
				require.NotEqual(t, calls[at].ID, <-ran)
			}
		})
	}
}

// A lane is handed back in which more calls wait than a holder has in hand. That nothing of it has started stands behind all of them,
// and whoever takes it next knows it all the same.
func TestHandback_BeyondWhatIsInHand(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(0)
	x := exclusive("account/x")
	first, once, calls := newCall("s", x), newCall("s", shared("account/x")), newCalls(400, x)
	put(t, p, append([]*protocol.Call{first, once}, calls...)...)
	consumer, err := f.js.Consumer(t.Context(), protocol.DefaultFleet.CallsStream(), protocol.DefaultFleet.ReadyConsumer(protocol.DefaultPool))
	require.NoError(t, err)
	ready, err := consumer.Next()
	require.NoError(t, err)
	meta, err := ready.Metadata()
	require.NoError(t, err)
	_, err = f.js.Publish(t.Context(), protocol.DefaultFleet.HandbackSubject(first.Pool, first.Lane().Hash(), meta.Sequence.Stream, 1), nil)
	require.NoError(t, err)
	require.NoError(t, p.Cancel(t.Context(), once))
	require.NoError(t, ready.Nak())
	f.hold(newHistory(), lane.Options{})
	require.Equal(t, 1, f.await(p, first).Attempt)
	require.Equal(t, protocol.StatusCancelled, f.await(p, once).Status)
	f.await(p, calls[len(calls)-1])
	f.requireQuiet()
}
