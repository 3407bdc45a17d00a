package calls_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func (r *rig) setLimit(rule limits.Rule) {
	r.t.Helper()
	store, err := limits.Open(r.t.Context(), r.JS, r.Name)
	require.NoError(r.t, err)
	require.NoError(r.t, store.Set(r.t.Context(), rule))
}

// A full pool delays callers, who hear why, and fails no call.
func TestDispatch_ABusyPoolIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.setLimit(limits.Rule{Pool: protocol.DefaultPool, Waiting: 2})
	calls := sameLane(newCalls(12), protocol.Exclusive)
	waits := make(chan string, 100)
	done := make(chan error, 1)
	results := 0
	go func() {
		done <- r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
			if u.Waits != "" {
				waits <- u.Waits
			}
			if u.Result != nil {
				results++
				if u.Result.Status != protocol.StatusOK {
					t.Error(u.Result.Error)
				}
			}
		})
	}()
	require.Contains(t, <-waits, "busy: pool default has 2 of 2 waiting calls")
	// Results of two calls may be seen in another order than the calls ran.
	ran := make(chan protocol.CallID, 2*len(calls))
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		return succeed(run)
	})
	require.NoError(t, <-done)
	require.Equal(t, len(calls), results)
	require.Len(t, ran, len(calls))
	for i := range calls {
		require.Equal(t, calls[i].ID, <-ran, "the order of the lane")
	}
	r.requireQuiet()
}

// A caller waits for a full pool until its deadline, not longer.
func TestDispatch_ABusyPoolIsWaitedForUntilTheDeadline(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.setLimit(limits.Rule{Pool: protocol.DefaultPool, Waiting: 1})
	calls := sameLane(newCalls(3), protocol.Exclusive)
	r.publish(&calls[0]) // the ready message
	r.publish(&calls[1])
	calls[2].Deadline = calls[2].IssuedAt.Add(time.Second)
	o, err := r.dispatch(t.Context(), calls[2:])
	require.NoError(t, err)
	result := requireDone(t, o, calls[2], protocol.StatusRejected, protocol.CodeBusy)
	require.Positive(t, result.Error.RetryAfter)
	require.ErrorIs(t, result.Error, lane.ErrBusy)

	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	late := newCalls(1)
	_, err = r.dispatcher.Call(ctx, &late[0])
	require.ErrorIs(t, err, lane.ErrNotSent, "a call that was never sent will not run")
}

// A quota refuses at once, and says which, how much, and when again.
func TestDispatch_AQuotaRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.setLimit(limits.Rule{Tenant: "acme", Rate: limits.Rate{N: 1, Per: time.Hour}, Burst: 1})
	calls := newCalls(2)
	for i := range calls {
		calls[i].Tenant = "acme"
	}
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	o, err := r.dispatch(t.Context(), calls[:1])
	require.NoError(t, err)
	requireDone(t, o, calls[0], protocol.StatusOK, "")
	o, err = r.dispatch(t.Context(), calls[1:])
	require.NoError(t, err)
	result := requireDone(t, o, calls[1], protocol.StatusRejected, protocol.CodeQuota)
	require.Contains(t, result.Error.Message, "tenant acme has used its rate of 1/h, burst 1; the call was not run, try again in ")
	require.Greater(t, result.Error.RetryAfter.Duration(), 30*time.Minute)
	require.ErrorIs(t, result.Error, lane.ErrQuota)
}

// publish enqueues a call as another process would, and does not follow it.
func (r *rig) publish(call *protocol.Call) {
	r.t.Helper()
	p, err := lane.NewPublisher(r.t.Context(), r.NC, r.Name)
	require.NoError(r.t, err)
	require.NoError(r.t, p.Enqueue(r.t.Context(), []lane.Outgoing{{Call: call}})[0])
}
