package calls_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call is found wherever it waits, while it runs and when it has ended, also if another
// dispatcher carries the calls of its pool; one that was never sent is not.
func TestFind(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	front := r.newDispatcher(r.NC, calls.Options{})
	front.Leave(protocol.DefaultPool, r.dispatcher)
	calls := sameLane(newCalls(4), protocol.Exclusive) // the first may be the lane's ready message
	ref := func(i int) protocol.CallRef { return protocol.CallRef{SessionID: calls[i].SessionID, ID: calls[i].ID} }
	states := func() (found []string) {
		for i := range calls {
			call, result, err := front.Find(t.Context(), protocol.DefaultPool, ref(i))
			require.NoError(t, err)
			switch {
			case call != nil:
				require.Nil(t, result)
				require.Equal(t, calls[i].Resources, call.Resources)
				found = append(found, "sent")
			case result != nil:
				found = append(found, string(result.Status))
			default:
				found = append(found, "unknown")
			}
		}
		return found
	}
	ctx, leave := context.WithCancelCause(t.Context())
	defer leave(nil)
	queued := 0
	err := front.Dispatch(ctx, calls[:3], func(loop.Update) {
		if queued++; queued == 3 {
			leave(loop.ErrDetached)
		}
	})
	require.ErrorIs(t, err, loop.ErrDetached)
	require.Equal(t, []string{"sent", "sent", "sent", "unknown"}, states())

	running, release := make(chan struct{}), make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID == calls[1].ID {
			close(running)
			<-release
		}
		return succeed(run)
	})
	<-running
	got := states()
	require.Contains(t, []string{"sent", "ok"}, got[0], "a call that has ended may be stored for a moment")
	require.Equal(t, []string{"sent", "sent", "unknown"}, got[1:])
	end()
	again := make([]protocol.Call, 3)
	for i := range again {
		again[i] = calls[i]
		again[i].Again = true
	}
	require.NoError(t, front.Dispatch(t.Context(), again, func(loop.Update) {}))
	require.Eventually(t, func() bool { return slices.Equal(states(), []string{"ok", "ok", "ok", "unknown"}) }, patience, time.Millisecond)
}
