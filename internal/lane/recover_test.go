package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Guard: a ready message may vanish with the call that it is. Whoever waits for that call puts it once more, and only then.
func TestRecover_ACallThatVanishedWithItsReadyMessage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	inline, behind := newCall("s", x), newCall("s", x)
	put(t, p, inline, behind)
	require.NoError(t, p.Recover(t.Context(), inline))
	require.NoError(t, p.Recover(t.Context(), behind))
	require.EqualValues(t, 2, f.stored(), "all is there, and nothing is put again")

	f.vanish(inline)
	require.NoError(t, p.Kick(t.Context(), behind), "another one makes the lane ready")
	require.NoError(t, p.Recover(t.Context(), inline))
	require.NoError(t, p.Recover(t.Context(), inline), "it is in the mailbox now")
	require.EqualValues(t, 3, f.stored())

	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, inline).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, behind).Status)
	f.requireQuiet()
	require.Len(t, ran, 2)
}

// vanish has the ready message removed that a call is, and a waiter notice it.
func (f *fleet) vanish(call *protocol.Call) {
	f.t.Helper()
	calls, err := f.js.Stream(f.t.Context(), protocol.DefaultFleet.CallsStream())
	require.NoError(f.t, err)
	ready, err := calls.GetLastMsgForSubject(f.t.Context(), protocol.DefaultFleet.ReadySubject(call.Pool, call.Lane().Hash()))
	require.NoError(f.t, err)
	require.Equal(f.t, string(call.ID), ready.Header.Get(protocol.HeaderCall), "the call itself")
	require.NoError(f.t, calls.DeleteMsg(f.t.Context(), ready.Sequence))
}

// recovers waits until a call that vanished is put once more.
func (f *fleet) recovers(p *lane.Publisher, call *protocol.Call) {
	f.t.Helper()
	require.ErrorIs(f.t, p.Recover(f.t.Context(), call), lane.ErrVanished)
	require.Eventually(f.t, func() bool { return p.Recover(f.t.Context(), call) == nil }, patience, 50*time.Millisecond)
}

// A call that has run by the time at which it is put once more does not run again.
func TestRecover_ASettledCallDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(briefLease)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	put(t, p, call)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Eventually(t, func() bool {
		result, err := p.Result(t.Context(), call.SessionID, call.ID)
		return err == nil && result != nil
	}, patience, 2*time.Millisecond)
	f.requireQuiet()
	f.recovers(p, call) // its waiter did not hear of the result yet
	f.requireQuiet()
	require.Len(t, ran, 1)
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}

// Guard: a call that vanished may have been started, and whoever takes its lane next removes the marks of calls that are not there.
func TestRecover_ACallThatMayHaveStarted(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		delivery protocol.Delivery
		cancel   bool
		status   protocol.Status
		attempt  int
	}{
		"must not start twice": {protocol.AtMostOnce, false, protocol.StatusOutcomeUnknown, 1},
		"runs again":           {protocol.Idempotent, false, protocol.StatusOK, 2},
		"cancelled":            {protocol.Idempotent, true, protocol.StatusOutcomeUnknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.ensurePool(briefLease)
			p := f.publisher()
			call := newCall("s", exclusive("account/x"))
			call.Delivery = test.delivery
			put(t, p, call)
			f.takeAndDie() // it has started the call
			fleet, hash := protocol.DefaultFleet, call.Lane().Hash()
			_, err := f.js.Publish(t.Context(), fleet.StartSubject(call.Pool, hash, call.ID, 1), []byte("lost 1 1"))
			require.NoError(t, err)
			f.vanish(call)
			require.NoError(t, p.Kick(t.Context(), call), "another one makes the lane ready")
			ran := make(chan protocol.CallID, 9)
			h := f.hold(tells(ran), lane.Options{})
			f.requireQuiet()
			h.stop()
			f.recovers(p, call)
			if test.cancel {
				require.NoError(t, p.Cancel(t.Context(), call))
			}
			f.hold(tells(ran), lane.Options{})
			result := f.await(p, call)
			require.Equal(t, test.status, result.Status, "%v", result.Error)
			require.Equal(t, test.attempt, result.Attempt)
			f.requireQuiet()
		})
	}
}

// Guard: who holds a lane need not know that its ready message is gone. What runs there is not put once more meanwhile.
func TestRecover_ACallThatRuns(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	const lease = natsio.DefaultAckWait
	f.ensurePool(lease)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	started, release := make(chan struct{}, 9), make(chan struct{})
	for range 2 {
		f.hold(executorFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
			started <- struct{}{}
			select {
			case <-release:
			case <-ctx.Done():
			}
			return succeed(run)
		}), lane.Options{})
	}
	put(t, p, call)
	<-started
	f.vanish(call)
	for begin := time.Now(); time.Since(begin) < 2*lease; stepAside(t, lease/8) {
		require.ErrorIs(t, p.Recover(t.Context(), call), lane.ErrVanished)
	}
	close(release)
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	f.requireQuiet()
	require.Empty(t, started)
}
