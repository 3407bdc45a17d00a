package calls_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestDispatch_TooLargeIsRejectedAndTheOthersRun(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]protocol.Call){
		"lanes of their own": func([]protocol.Call) {},
		"one lane":           func(calls []protocol.Call) { sameLane(calls, protocol.Exclusive) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, natsio.Topology{})
			r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
			calls := newCalls(3)
			change(calls)
			calls[0].Payload = tooLarge()
			o := r.mustDispatch(t.Context(), calls)
			rejected := requireDone(t, o, calls[0], protocol.StatusRejected, codes.PayloadTooLarge)
			require.Contains(t, rejected.Error.Message, "send less at once")
			requireDone(t, o, calls[1], protocol.StatusOK, "")
			requireDone(t, o, calls[2], protocol.StatusOK, "")
		})
	}
}

func TestDispatch_FullFleetRejectsAndTheOthersRun(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]protocol.Call){
		"lanes of their own": func([]protocol.Call) {},
		"one lane":           func(calls []protocol.Call) { sameLane(calls, protocol.Exclusive) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const room = 4
			r := newRig(t, natsio.Topology{MaxCalls: room})
			calls := newCalls(10)
			change(calls)
			rejected := make(chan struct{})
			var once sync.Once
			counts := map[protocol.Status]int{}
			done := make(chan error, 1)
			go func() {
				done <- r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
					if u.State != loop.StateDone {
						return
					}
					counts[u.Result.Status]++
					if u.Result.Error != nil && u.Result.Error.Code != protocol.CodeFleetFull {
						t.Error(u.Result.Error)
					}
					if counts[protocol.StatusRejected] == len(calls)-room {
						once.Do(func() { close(rejected) })
					}
				})
			}()
			<-rejected
			r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
			require.NoError(t, <-done)
			require.Equal(t, map[protocol.Status]int{protocol.StatusRejected: len(calls) - room, protocol.StatusOK: room}, counts)
			r.requireQuiet()
		})
	}
}

// A call that was dispatched before is never told not to have run because there is no room for it
// now.
func TestDispatch_FullFleetRejectsNothingThatMayHaveRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{MaxCalls: 1})
	publisher, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: &newCalls(1)[0]}), "which fills the stream")

	calls := newCalls(2)
	calls[0].Again, calls[1].Again = true, true
	result := wire.NewResult(&calls[0], protocol.StatusOK, nil)
	body, err := wire.EncodeResult(&result)
	require.NoError(t, err)
	_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, calls[0].SessionID, calls[0].ID), body)
	require.NoError(t, err)

	o, err := r.dispatch(t.Context(), calls)
	require.ErrorIs(t, err, lane.ErrFullAgain, "of the second one nothing is known")
	requireDone(t, o, calls[0], protocol.StatusOK, "")
	_, unknown := o.of(calls[1].ID)
	require.Nil(t, unknown)
	r.mustDispatch(t.Context(), calls[:1])
}

func TestDispatch_AResultThatNATSLostIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(2)
	for _, call := range calls { // stored before anybody listens
		result := wire.NewResult(&call, protocol.StatusOK, nil)
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, call.SessionID, call.ID), body)
		require.NoError(t, err)
	}
	o := r.mustDispatch(t.Context(), calls)
	for _, call := range calls {
		requireDone(t, o, call, protocol.StatusOK, "")
	}
}

// A large value that somebody removed with all others keeps nobody from a result: its call has one
// without it.
func TestDispatch_AValueThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(2)
	for i, value := range []protocol.Value{wire.Stored{Blob: "result/s/1", Bytes: 1 << 20}, nil} {
		result := wire.NewResult(&calls[i], protocol.StatusOK, nil)
		result.Value = value
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, calls[i].SessionID, calls[i].ID), body)
		require.NoError(t, err)
	}
	require.NoError(t, r.JS.DeleteObjectStore(t.Context(), wire.BlobsBucket(r.Name)))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := r.mustDispatch(ctx, calls)
	require.NoError(t, ctx.Err())
	for _, call := range calls {
		require.Nil(t, requireDone(t, o, call, protocol.StatusOK, "").Value)
	}
}

// A result that this version cannot read ends its call, and keeps nobody from the results of the
// others.
func TestDispatch_AResultThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(2)
	result := wire.NewResult(&calls[1], protocol.StatusOK, nil)
	readable, err := wire.EncodeResult(&result)
	require.NoError(t, err)
	for i, body := range [][]byte{[]byte(`{"type":"result/v9"}`), readable} {
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, calls[i].SessionID, calls[i].ID), body)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	o := r.mustDispatch(ctx, calls)
	require.NoError(t, ctx.Err())
	unread := requireDone(t, o, calls[0], protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, unread.Error.Message, "cannot read")
	requireDone(t, o, calls[1], protocol.StatusOK, "")
}

func TestDispatch_OutlivesALostConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc, link := r.ConnectVia()
	r.dispatcher = r.newDispatcher(nc, calls.Options{})
	started := make(chan struct{})
	cut := make(chan struct{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		close(started)
		<-cut
		return succeed(run)
	})
	calls := newCalls(1)
	done := make(chan error, 1)
	o := &told{t: t}
	go func() { done <- r.dispatcher.Dispatch(t.Context(), calls, o.observe) }()
	<-started
	link.Cut()
	close(cut)
	publisher, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		result, err := publisher.Result(t.Context(), calls[0].SessionID, calls[0].ID)
		return err == nil && result != nil
	}, patience, time.Millisecond)
	link.Mend()
	require.NoError(t, <-done)
	requireDone(t, o, calls[0], protocol.StatusOK, "")
}

func TestDispatch_KnownCallsAreNotRunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	var executed atomic.Int64
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		executed.Add(1)
		return succeed(run)
	})
	calls := newCalls(4)
	for range 2 {
		o := r.mustDispatch(t.Context(), calls)
		for i, call := range calls {
			requireDone(t, o, call, protocol.StatusOK, "")
			calls[i].Again = true
		}
	}
	require.EqualValues(t, len(calls), executed.Load())
	r.requireQuiet()
	require.EqualValues(t, len(calls), executed.Load())
}

func TestDispatch_UnreachableFleetIsAnError(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc := r.Connect()
	r.dispatcher = r.newDispatcher(nc, calls.Options{})
	nc.Close()
	o, err := r.dispatch(t.Context(), newCalls(2))
	require.ErrorIs(t, err, nats.ErrConnectionClosed)
	require.Empty(t, o.updates)
	require.NotErrorIs(t, err, loop.ErrDetached)
}

func TestNew_WithoutStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	_, err := calls.New(t.Context(), r.NC, "nobody", nil)
	require.ErrorContains(t, err, "NOBODY_CALLS")
}

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
	o := r.mustDispatch(t.Context(), calls[2:])
	result := requireDone(t, o, calls[2], protocol.StatusRejected, protocol.CodeBusy)
	require.Positive(t, result.Error.RetryAfter)
	require.ErrorIs(t, result.Error, lane.ErrBusy)

	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	late := newCalls(1)
	_, err := r.dispatcher.Call(ctx, &late[0])
	require.ErrorIs(t, err, lane.ErrNotSent, "a call that was never sent will not run")
}

// A quota refuses at once, and says which, how much, and when again.
func TestDispatch_AQuotaRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.setLimit(limits.Rule{Tenant: "acme", Rate: "1/h", Burst: 1})
	calls := newCalls(2)
	for i := range calls {
		calls[i].Tenant = "acme"
	}
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	o := r.mustDispatch(t.Context(), calls[:1])
	requireDone(t, o, calls[0], protocol.StatusOK, "")
	o = r.mustDispatch(t.Context(), calls[1:])
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
	require.NoError(r.t, p.Enqueue(r.t.Context(), lane.Outgoing{Call: call}))
}
