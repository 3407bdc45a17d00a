package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Law: a holder does not look for the result of a call whose caller saw another result of this
// holder before it sent the call. No copy of such a call runs again: not one that arrives late, and
// not one for another holder. A call that was sent before is looked for.
func TestSeen_ANewCallIsNotLookedFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	ran := make(chan protocol.CallID, 10)
	host := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		return succeed(run)
	})
	first := f.hold(host, lane.Options{Linger: time.Hour})
	p := f.publisher()
	follow := func(c *protocol.Call) *protocol.Result {
		t.Helper()
		require.NoError(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: c, Followed: true}})[0])
		r := f.await(p, c)
		p.Ended(c, r)
		require.Equal(t, c.ID, <-ran)
		return r
	}
	one, two := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	seen := follow(one)
	looks := f.overhear("$JS.API.DIRECT.GET." + wire.ResultsStream(factFleet))
	sent := f.overhear(wire.CallSubject(factFleet, protocol.DefaultPool, wire.HashLane(one.Lane()), "*"))
	require.Equal(t, seen.Epoch, follow(two).Epoch)
	require.Empty(t, looks.all(), "the caller saw the result of one")

	again := func(c *protocol.Call) {
		t.Helper()
		put(t, p, c, newCall("s", exclusive("account/a")))
		require.NotEqual(t, c.ID, <-ran, "only the call behind it runs")
	}
	again(one)
	copied := sent.all()[0]
	require.Equal(t, wire.Seen{Epoch: seen.Epoch, Sequence: seen.Sequence}, wire.SeenOfHeader(copied.Header.Get(wire.HeaderSeen)))
	late := func() {
		t.Helper()
		f.publish(copied.Subject, copied.Header, copied.Data)
		put(t, p, newCall("s", exclusive("account/a")))
		require.NotEqual(t, two.ID, <-ran)
	}
	late()
	first.stop()
	f.hold(host, lane.Options{Worker: "other"})
	late()
	f.requireQuiet()
	require.Empty(t, ran)
}
