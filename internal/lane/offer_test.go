package lane_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// withoutHandlers is a host that runs only calls which need no handler.
func withoutHandlers(host testHost) testHost {
	host.canRun = func(n lane.Requirements) bool { return !n.Handler }
	return host
}

func always(protocol.Lane) bool { return true }

// refund is a call that takes a handler.
func refund(t *testing.T, uses ...protocol.Use) *protocol.Call {
	t.Helper()
	payload, err := wire.NewUserPayload("refund", json.RawMessage(`{}`))
	require.NoError(t, err)
	call := newCall("s", uses...)
	call.Payload = payload
	return call
}

// A worker that lacks what a call needs leaves it as it is; whoever has it runs it when it joins,
// as the first attempt, also a call that must not start twice.
func TestOffer_WaitsForWhoeverCanRunIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := refund(t, exclusive("account/a"))
	call.Delivery = protocol.AtMostOnce
	offers, err := f.nc.SubscribeSync(wire.AskSubject(factFleet, protocol.DefaultPool, wire.HashLane(call.Lane())))
	require.NoError(t, err)
	require.NoError(t, f.nc.Flush())
	f.hold(withoutHandlers(succeeds), lane.Options{Worker: "plain", Slots: 8})
	put(t, p, call)
	said, err := offers.NextMsg(patience)
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"refund","handler":true}`, string(said.Data))
	again, err := offers.NextMsg(patience)
	require.NoError(t, err, "it is offered again and again")
	require.Equal(t, said.Data, again.Data)
	r, err := p.Result(t.Context(), "s", call.ID)
	require.NoError(t, err)
	require.Nil(t, r)

	f.hold(succeeds, lane.Options{Worker: "able"})
	got := f.await(p, call)
	require.Equal(t, protocol.StatusOK, got.Status, "%v", got.Error)
	require.Equal(t, protocol.WorkerID("able"), got.WorkerID)
	require.Equal(t, 1, got.Attempt)
	f.requireQuiet()
}

// The others of the lane run in their order, each where it can.
func TestOffer_KeepsTheOrderOfALane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	ran := make(chan protocol.CallID, 9)
	f.hold(withoutHandlers(tells(ran)), lane.Options{Worker: "plain", Slots: 8})
	able := tells(ran)
	able.canRun = func(n lane.Requirements) bool { return n.Handler }
	f.hold(able, lane.Options{Worker: "able"})
	key := exclusive("account/a")
	calls := []*protocol.Call{newCall("s", key), refund(t, key), newCall("s", key), refund(t, key), newCall("s", key)}
	put(t, p, calls...)
	for i, call := range calls {
		got := f.await(p, call)
		require.Equal(t, protocol.StatusOK, got.Status, "%v", got.Error)
		require.Equal(t, []protocol.WorkerID{"plain", "able"}[i%2], got.WorkerID)
		require.Equal(t, 1, got.Attempt)
		require.Equal(t, call.ID, <-ran)
	}
	f.requireQuiet()
}

// A call that nobody can run holds up none that does not conflict with it, and is answered when it
// is cancelled or its time is over.
func TestOffer_HoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(withoutHandlers(succeeds), lane.Options{})
	cancelled, expired := refund(t, exclusive("account/a/1")), refund(t, exclusive("account/a/2"))
	expired.QueueTimeout = protocol.MillisOf(time.Millisecond)
	put(t, p, cancelled, expired)
	beside := newCall("s", exclusive("account/a/3"))
	put(t, p, beside)
	require.Equal(t, protocol.StatusOK, f.await(p, beside).Status)
	require.Equal(t, protocol.CodeQueueTimeout, f.await(p, expired).Error.Code)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	f.requireQuiet()
}

// A lane where something lives that must not end with it is not handed back.
func TestOffer_NotOfALaneThatIsKept(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	host := withoutHandlers(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		return wire.NewResult(run.Call, protocol.StatusRejected, protocol.Errorf(codes.UnknownPayload, "no"))
	}))
	host.mustHold = always
	f.hold(host, lane.Options{})
	call := refund(t, exclusive("account/a"))
	put(t, p, call)
	require.Equal(t, codes.UnknownPayload, f.await(p, call).Error.Code)
}
