package calls_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
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

const scriptedLife = wire.LifeID("life-1")

// scripted has a worker claim the lane of a call, and start that.
func (r *rig) scripted(call *protocol.Call, lease time.Duration) *scripted {
	r.t.Helper()
	s, err := store.Open(r.t.Context(), r.Connect(), r.Name)
	require.NoError(r.t, err)
	w := &scripted{rig: r, store: s, call: call, beat: wire.Heartbeat{WorkerID: "w1", LeaseMS: lease.Milliseconds()}}
	w.renew()
	claim := wire.Claim{Lane: call.Lane(), WorkerID: "w1", Life: scriptedLife, Token: "t", Ready: 1}
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
	body, err := wire.EncodeFrame(&wire.Frame{CallID: w.call.ID, Seq: 1, Kind: wire.FrameStarted, WorkerID: worker, Attempt: attempt})
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
