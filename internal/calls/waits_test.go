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
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// scripted is a worker whose records and frames are what the test says.
type scripted struct {
	*rig

	store *store.Store
	call  *protocol.Call
	beat  wire.Heartbeat
	seq   uint64
}

const scriptedLife = wire.IncarnationID("life-1")

// scripted has a worker claim the lane of a call, and start that.
func (r *rig) scripted(call *protocol.Call, lease time.Duration) *scripted {
	r.t.Helper()
	s, err := store.Open(r.t.Context(), r.Connect(), r.Name)
	require.NoError(r.t, err)
	w := &scripted{rig: r, store: s, call: call, beat: wire.Heartbeat{WorkerID: "w1", LeaseMS: lease.Milliseconds()}}
	w.renew()
	claim := wire.Claim{Lane: call.Lane(), WorkerID: "w1", Incarnation: scriptedLife, Token: "t", Ready: 1}
	_, answer, err := s.StoreClaim(r.t.Context(), call.Pool, &claim, 0)
	require.NoError(r.t, err)
	require.Equal(r.t, store.Accepted, answer)
	w.starts("w1", 1)
	return w
}

func (w *scripted) renew() {
	w.t.Helper()
	w.beat.Beat++
	seq, answer, err := w.store.StoreHeartbeat(w.t.Context(), w.call.Pool, scriptedLife, &w.beat, w.seq)
	require.NoError(w.t, err)
	require.Equal(w.t, store.Accepted, answer)
	w.seq = seq
}

func (w *scripted) starts(worker protocol.WorkerID, attempt int) {
	w.t.Helper()
	body, err := wire.Encode(&wire.Frame{CallID: w.call.ID, Seq: 1, Kind: wire.FrameStarted, WorkerID: worker, Attempt: attempt})
	require.NoError(w.t, err)
	require.NoError(w.t, w.NC.Publish(wire.OutputSubject(w.Name, w.call.SessionID, w.call.ID), body))
}

// Whoever waits for a call that runs is told that its worker is lost and for how long the lease
// lasts, that the worker is there again, that the lease has ended, and where the call goes on.
func TestDispatch_SaysThatAWorkerIsLost(t *testing.T) {
	t.Parallel()
	for delivery, next := range map[protocol.Delivery][2]string{
		protocol.Idempotent: {"then another worker takes over", "pool default has no worker that answers"},
		protocol.AtMostOnce: {"and the call is not started again", "pool default has no worker that answers"},
	} {
		t.Run(string(delivery), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, natsio.Topology{})
			call := &newCalls(1)[0]
			call.Delivery = delivery
			updates := make(chan loop.Update, 100)
			ctx, cancel := context.WithCancel(t.Context())
			d := r.newDispatcher(r.NC, calls.Options{CancelWait: time.Millisecond})
			ended := make(chan error, 1)
			go func() {
				_, err := d.CallWith(ctx, call, calls.CallOptions{Observe: func(u loop.Update) { updates <- u }})
				ended <- err
			}()
			hear := func(state loop.State) loop.Update {
				t.Helper()
				select {
				case u := <-updates:
					require.Equal(t, state, u.State, "%+v", u)
					return u
				case <-time.After(patience):
					t.Fatal("nothing is told")
					return loop.Update{}
				}
			}
			hear(loop.StateQueued)
			w := r.scripted(call, 6*time.Second)
			require.Empty(t, hear(loop.StateRunning).Lost)

			require.Regexp(t, `^worker w1 is lost; its lease ends in [1-4] s, `+next[0]+`$`, hear(loop.StateRunning).Lost)
			w.renew()
			back := hear(loop.StateRunning)
			require.Equal(t, loop.Update{CallID: call.ID, State: loop.StateRunning, WorkerID: "w1", Attempt: 1}, back)

			require.Contains(t, hear(loop.StateRunning).Lost, "worker w1 is lost; its lease ends in ")
			require.Equal(t, "worker w1 is lost, its lease has ended; "+next[1], hear(loop.StateRunning).Lost)
			w.starts("w2", 2)
			require.Equal(t, loop.Update{CallID: call.ID, State: loop.StateRunning, WorkerID: "w2", Attempt: 2}, hear(loop.StateRunning))
			cancel()
			require.NoError(t, <-ended)
		})
	}
}

// A stream is deleted while a call waits: its caller is told.
func TestDispatch_SaysThatAStreamIsGone(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{wire.CallsStream(protocol.DefaultFleet), wire.ResultsStream(protocol.DefaultFleet)} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, natsio.Topology{})
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := r.dispatcher.Dispatch(ctx, newCalls(1), func(u loop.Update) {
				if u.State == loop.StateQueued && u.Waits == "" {
					require.NoError(t, r.JS.DeleteStream(t.Context(), stream))
				}
			})
			require.NoError(t, ctx.Err())
			require.ErrorIs(t, err, natsio.ErrNoStream)
			require.ErrorContains(t, err, stream)
		})
	}
}

// A stream is deleted and made again while calls wait. Those that were in it are lost, and their
// callers hear it; the others go on.
func TestDispatch_WhatIsLostWithAStreamIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	remake := func(stream string) {
		require.NoError(t, r.JS.DeleteStream(t.Context(), stream))
		require.NoError(t, natsio.Ensure(t.Context(), r.JS, natsio.Topology{}))
	}
	beyond, err := r.NC.SubscribeSync("$JS.API.DIRECT.GET." + wire.ResultsStream(r.Name))
	require.NoError(t, err)
	calls := newCalls(1)
	o := &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
		if o.observe(u); u.State == loop.StateQueued && u.Waits == "" {
			remake(wire.CallsStream(r.Name))
		}
	}))
	require.NoError(t, ctx.Err())
	result := requireDone(t, o, calls[0], protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, result.Error.Message, "made again")
	require.NoError(t, r.NC.Flush())
	asked, _, err := beyond.Pending()
	require.NoError(t, err)
	require.Zero(t, asked, "callers need not have the right to ask so: natsio.CallRights")

	calls = newCalls(1)
	o = &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
		if o.observe(u); u.State == loop.StateQueued && u.Waits == "" {
			remake(wire.ResultsStream(r.Name))
			r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
		}
	}))
	requireDone(t, o, calls[0], protocol.StatusOK, "")
}

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
