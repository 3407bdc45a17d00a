package lane_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls that come as their lane's ready message are started without a look into the mailbox, when
// it is certain what the look would find.

// looks counts the reads of a lane's mailbox.
func (f *fleet) looks(c *protocol.Call) *atomic.Int32 {
	f.t.Helper()
	var n atomic.Int32
	filter := protocol.DefaultFleet.MailboxFilter(c.Pool, c.Lane().Hash())
	subscription, err := f.nc.Subscribe("$JS.API.DIRECT.GET."+protocol.DefaultFleet.CallsStream(), func(msg *nats.Msg) {
		if bytes.Contains(msg.Data, []byte(filter)) {
			n.Add(1)
		}
	})
	require.NoError(f.t, err)
	f.t.Cleanup(func() { _ = subscription.Unsubscribe() })
	require.NoError(f.t, f.nc.Flush())
	return &n
}

func TestAlone_OneLookIsTheLast(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) }), lane.Options{})
	first := newCall("s", exclusive("account/first"))
	put(t, p, first)
	f.await(p, first)
	f.requireQuiet() // now the holder surely listens
	only := newCall("s", exclusive("account/only"))
	one, two := newCall("s", exclusive("account/two")), newCall("s", exclusive("account/two"))
	looks, others := f.looks(only), f.looks(one)
	put(t, p, only)
	f.await(p, only)
	f.requireQuiet()
	require.Eventually(t, func() bool { return looks.Load() > 0 }, patience, time.Millisecond, "none after the release")
	require.EqualValues(t, 1, looks.Load(), "there was one before the start")
	put(t, p, one, two)
	f.await(p, two)
	require.Eventually(t, func() bool { return others.Load() > 1 }, patience, time.Millisecond, "what is put together is taken together")
}

func TestAlone_AnOlderEntryIsFirst(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	older, newer := newCall("s", x), newCall("s", x)
	raw(t, f, protocol.DefaultFleet.CallSubject(older.Pool, older.Lane().Hash(), older.ID), older) // its publisher died before it made the lane ready
	ran := make(chan protocol.CallID, 2)
	f.hold(tells(ran), lane.Options{})
	warm := newCall("s", exclusive("account/warm"))
	put(t, p, warm)
	require.Equal(t, warm.ID, <-ran)
	put(t, p, newer)
	require.Equal(t, older.ID, <-ran)
	require.Equal(t, newer.ID, <-ran)
}

// busyHolder is a holder whose only slot is taken until the function that is returned is called, and
// the calls that it starts after that.
func busyHolder(t *testing.T, f *fleet, nc *nats.Conn, p *lane.Publisher) (finish func(), ran chan protocol.CallID) {
	t.Helper()
	blocker := newCall("s", exclusive("account/blocker"))
	release := make(chan struct{})
	ran = make(chan protocol.CallID, 9)
	h, err := lane.NewHolder(t.Context(), nc, executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
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
	stepAside(t, 100*time.Millisecond)
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
