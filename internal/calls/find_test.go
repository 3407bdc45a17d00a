package calls_test

import (
	"context"
	"fmt"
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
	front.RoutePool(protocol.DefaultPool, r.dispatcher)
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

// A call that was void before it is sent does not run, whether its lane is held, idle or without a
// worker, and however often it comes. One that was sent before runs once, and is found.
func TestVoid(t *testing.T) {
	t.Parallel()
	for _, delivery := range []protocol.Delivery{protocol.Idempotent, protocol.AtMostOnce} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprint(delivery, " held ", held), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, natsio.Topology{})
				var ran sync.Map
				hold := func() {
					r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
						ran.Store(run.Call.ID, true)
						return succeed(run)
					})
				}
				calls := sameLane(newCalls(5), protocol.Exclusive)
				for i := range calls {
					calls[i].Delivery = delivery
				}
				last := calls[4]
				void := func(c *protocol.Call) (*protocol.Call, *protocol.Result) {
					ref := protocol.CallRef{SessionID: c.SessionID, ID: c.ID}
					require.NoError(t, r.dispatcher.Void(t.Context(), c.Pool, c.Lane(), ref))
					call, result, err := r.dispatcher.Find(t.Context(), c.Pool, ref)
					require.NoError(t, err)
					return call, result
				}
				if held {
					hold()
					r.requireOK(t, &calls[3])
				}
				for i := range 2 {
					call, result := void(&calls[i])
					require.Nil(t, call)
					require.Nil(t, result)
				}
				require.NoError(t, r.dispatcher.Submit(t.Context(), &calls[2])) // it may be the ready message itself
				call, result := void(&calls[2])
				require.True(t, call != nil || result != nil, "it was sent before")
				if !held {
					hold()
					r.requireOK(t, &calls[3])
				}
				for range 2 {
					for i := range 2 {
						got, err := r.dispatcher.Call(t.Context(), &calls[i])
						require.NoError(t, err)
						require.Equal(t, protocol.StatusCancelled, got.Status, "%+v", got.Error)
						require.Contains(t, got.Error.Message, "another process has refused the call")
					}
				}
				calls[2].Again = true
				r.requireOK(t, &calls[2])
				r.requireOK(t, &last)
				for i, runs := range []bool{false, false, true, true, true} {
					_, did := ran.Load(calls[i].ID)
					require.Equal(t, runs, did, "call %d", i)
				}
			})
		}
	}
}

// requireOK runs a call.
func (r *rig) requireOK(t *testing.T, call *protocol.Call) {
	t.Helper()
	got, err := r.dispatcher.Call(t.Context(), call)
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, got.Status)
}
