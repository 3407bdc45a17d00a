package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls that come as their lane's ready message start only after what was there before them.

func TestAlone_AnOlderEntryIsFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	older, newer := newCall("s", x), newCall("s", x)
	ran := make(chan protocol.CallID, 3)
	f.hold(tells(ran), lane.Options{})
	warm := newCall("s", exclusive("account/warm"))
	put(t, p, warm)
	require.Equal(t, warm.ID, <-ran)
	// Its publisher dies before it makes the lane ready.
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, older.Pool, wire.HashLane(older.Lane()), older.ID), older)
	put(t, p, newer)
	require.Equal(t, older.ID, <-ran)
	require.Equal(t, newer.ID, <-ran)
}

// busyHolder is a holder whose only slot is taken until the function that is returned is called,
// and the calls that it starts after that.
func busyHolder(t *testing.T, f *fleet, nc *nats.Conn, p *lane.Publisher) (finish func(), ran chan protocol.CallID) {
	t.Helper()
	blocker := newCall("s", exclusive("account/blocker"))
	release := make(chan struct{})
	ran = make(chan protocol.CallID, 9)
	h, err := lane.NewHolder(t.Context(), nc, hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		if run.Call.ID == blocker.ID {
			<-release
		}
		return succeed(run)
	}), lane.Options{Worker: "busy", Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("holder: %v", err)
		}
	})
	put(t, p, blocker)
	require.Equal(t, blocker.ID, <-ran)
	return func() { close(release) }, ran
}

func TestAlone_ACancelledCallDoesNotStart(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	finish, ran := busyHolder(t, f, f.connect(), p)
	cancelled, other := newCall("s", exclusive("account/cancelled")), newCall("s", exclusive("account/other"))
	put(t, p, cancelled, other)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	finish()
	require.Equal(t, other.ID, <-ran)
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	require.Empty(t, ran)
}

func TestAlone_APausedLaneStartsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	finish, ran := busyHolder(t, f, f.connect(), p)
	paused, other := newCall("s", exclusive("account/paused")), newCall("s", exclusive("account/other"))
	put(t, p, paused, other)
	o := f.operator()
	_, err := o.Pause(t.Context(), protocol.DefaultPool, paused.Lane())
	require.NoError(t, err)
	finish()
	require.Equal(t, other.ID, <-ran)
	f.await(p, other)
	f.requireHeldPaused(paused.Lane())
	late := newCall("s", exclusive("account/paused"))
	put(t, p, late)
	require.NoError(t, p.Cancel(t.Context(), late))
	require.Equal(t, protocol.StatusCancelled, f.await(p, late).Status) // so the holder has looked at the lane since
	require.Empty(t, ran)
	_, err = o.Resume(t.Context(), protocol.DefaultPool, paused.Lane())
	require.NoError(t, err)
	require.Equal(t, paused.ID, <-ran)
	f.await(p, paused)
}

// What was told while the connection was gone is not known.
func TestAlone_ACancelDuringADisconnectIsSeen(t *testing.T) {
	t.Parallel()
	nf := natsiotest.New(t, natsio.Topology{})
	f := around(t, nf)
	p := f.publisher()
	nc, link := nf.ConnectVia()
	finish, ran := busyHolder(t, f, nc, p)
	cancelled, other := newCall("s", exclusive("account/cancelled")), newCall("s", exclusive("account/other"))
	link.Cut()
	put(t, p, cancelled, other)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	link.Mend()
	require.Eventually(t, nc.IsConnected, patience, time.Millisecond)
	finish()
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	f.await(p, other)
	for len(ran) > 0 {
		require.NotEqual(t, cancelled.ID, <-ran)
	}
}
