package lane_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// More calls wait in a lane than its holder has in hand at once. One of them is cancelled that it
// has not read yet: once the request is accepted the call does not start, although the request is
// stored behind all of them.
func TestCancel_BeyondWhatIsInHand(t *testing.T) {
	t.Parallel()
	const waiting, at = 400, 350
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
				f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
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
