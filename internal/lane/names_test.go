package lane_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Headers carry the names of lanes, and NATS takes spaces away from their ends and lines apart.
func TestLane_MayHaveAnyName(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	o, err := operator.New(t.Context(), f.nc, protocol.DefaultFleet)
	require.NoError(t, err)
	names := []string{
		" ", "a ", " a", "  a  ", "\t", "a\t", "\n", "a\r\nTf-Call: x", "*", ">", "a.b", "a*", "ünï cödé", "日本", "\u2028", "\u00a0", "\x7f", "\x01",
		`"`, `\`, `\u0020`, "%", "<a&b>", "🦆", "\ufeff", "\ufffd", strings.Repeat("\x01", 1000),
	}
	var calls []*protocol.Call
	for _, name := range names {
		key, err := protocol.ParseResourceKey("account/" + name)
		require.NoError(t, err, "%q", name)
		for range 2 { // the first is the ready message, the second waits in the mailbox
			call := newCall("s", exclusive(string(key)))
			put(t, p, call)
			calls = append(calls, call)
		}
		_, err = o.Pause(t.Context(), protocol.DefaultPool, key.Lane())
		require.NoError(t, err)
	}
	list, err := o.List(t.Context(), protocol.DefaultPool, 0)
	require.NoError(t, err)
	require.Len(t, list.Lanes, len(names))
	for i, status := range list.Lanes {
		require.Equal(t, "account/"+names[i], string(status.Lane), "the oldest first")
		_, err := o.Resume(t.Context(), protocol.DefaultPool, status.Lane)
		require.NoError(t, err)
	}
	f.hold(succeeds, lane.Options{Slots: 4})
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status, "%q", call.Lane())
	}
	f.requireQuiet()
}

// Who may publish in one pool must not have its workers run what is meant for another one.
func TestLane_ACallOfAnotherPoolIsNotRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	call := newCall("s", exclusive("account/x"))
	call.Pool = "other"
	msg := messageOf(t, wire.ReadySubject(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(call.Lane())), call)
	require.NoError(t, f.nc.PublishMsg(msg))
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		t.Errorf("call of pool %s runs", run.Call.Pool)
		return succeed(run)
	}), lane.Options{})
	result := f.await(f.publisher(), call)
	require.Equal(t, protocol.StatusRejected, result.Status)
	require.Contains(t, result.Error.Message, "in pool other")
}
