package lane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
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

	calls, err := f.js.Stream(t.Context(), protocol.DefaultFleet.CallsStream())
	require.NoError(t, err)
	ready, err := calls.GetLastMsgForSubject(t.Context(), protocol.DefaultFleet.ReadySubject(inline.Pool, inline.Lane().Hash()))
	require.NoError(t, err)
	require.NotEmpty(t, ready.Data, "the call itself")
	require.NoError(t, calls.DeleteMsg(t.Context(), ready.Sequence))
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

// A call that has run by the time at which it is put once more does not run again.
func TestRecover_ASettledCallDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/x"))
	call.Delivery = protocol.AtMostOnce
	put(t, p, call)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Eventually(t, func() bool {
		result, err := p.Result(t.Context(), call.SessionID, call.ID)
		return err == nil && result != nil
	}, 30*time.Second, 2*time.Millisecond)
	f.requireQuiet()
	require.NoError(t, p.Recover(t.Context(), call), "its waiter did not hear of the result yet")
	f.requireQuiet()
	require.Len(t, ran, 1)
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}
