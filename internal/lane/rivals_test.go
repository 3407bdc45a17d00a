package lane_test

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Guard: servers renew the lease of a ready message for whoever asks, also for whoever got it before somebody else did. Of two
// workers that got it one after the other, within a lease, only the first holds the lane.
func TestCluster_OfTwoDeliveriesWithinALeaseOneHoldsTheLane(t *testing.T) {
	t.Parallel()
	const lease = time.Minute
	f, _ := newClusterFleet(t)
	f.ensurePool(lease)
	p := f.publisher()
	call := newCall("s", exclusive("account/1"))
	put(t, p, call)
	former := f.take(f.pool(lease)) // marks are stored by whoever comes after it
	require.NoError(t, former.Nak())

	begun, goOn := make(chan struct{}), make(chan struct{})
	f.hold(executorFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(begun)
		select {
		case <-goOn:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Worker: "first"})
	await(t, begun, "the call is not started")

	var twice atomic.Bool
	left := make(chan struct{})
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		twice.Store(true)
		return succeed(run)
	}), lane.Options{Worker: "second", Lost: func(context.Context, protocol.Lane) { close(left) }})
	require.NoError(t, f.nc.Publish(former.Reply(), []byte("-NAK"))) // what servers do by themselves when another one leads
	await(t, left, "the second worker keeps the lane")

	close(goOn)
	require.Equal(t, protocol.WorkerID("first"), f.await(p, call).WorkerID)
	require.False(t, twice.Load(), "started while it ran")
	f.requireQuiet()
}

// Guard: the first of the two may be done, and the ready message gone, before the second one looks.
func TestCluster_WhoComesWhenTheReadyMessageIsGoneLeavesTheLane(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	f.ensurePool(time.Minute)
	call := newCall("s", exclusive("account/1"))
	put(t, f.publisher(), call)
	former := f.take(f.pool(time.Minute))
	meta, err := former.Metadata()
	require.NoError(t, err)
	require.NoError(t, former.Nak()) // marks are stored by whoever comes after it

	cable := natsiotest.NewCable(t, c.Servers[0].Addr().String())
	f.dial = func() *nats.Conn {
		nc, err := natsio.Connect(t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: t.Name()})
		require.NoError(t, err)
		return nc
	}
	cable.Before(func(said []byte) bool { return bytes.Contains(said, []byte(".claim.")) }, func() { f.deleteMsg(meta.Sequence.Stream) })
	var ran atomic.Bool
	left := make(chan struct{})
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran.Store(true)
		return succeed(run)
	}), lane.Options{Lost: func(context.Context, protocol.Lane) { close(left) }})
	await(t, left, "the lane is kept")
	require.False(t, ran.Load(), "run by somebody who does not hold the lane")
}

// Guard: a number may be drawn twice. Whoever finds the mark of another claim under the number of its own leaves that
// mark to the other, and the lane too.
func TestCluster_AClaimWithTheNumberOfAnotherIsNotItsOwn(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	f.ensurePool(time.Minute)
	call := newCall("s", exclusive("account/1"))
	put(t, f.publisher(), call)
	former := f.take(f.pool(time.Minute))
	meta, err := former.Metadata()
	require.NoError(t, err)
	require.NoError(t, former.Nak()) // marks are stored by whoever comes after it

	cable := natsiotest.NewCable(t, c.Servers[0].Addr().String())
	f.dial = func() *nats.Conn {
		nc, err := natsio.Connect(t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: t.Name()})
		require.NoError(t, err)
		return nc
	}
	mark := regexp.MustCompile(`PUB (\S+\.claim\.[0-9]+) `)
	var subject string
	cable.Before(func(said []byte) bool {
		found := mark.FindSubmatch(said)
		if found != nil {
			subject = string(found[1])
		}
		return found != nil
	}, func() {
		rival := nats.NewMsg(subject)
		rival.Header.Set(protocol.HeaderReady, strconv.FormatUint(meta.Sequence.Stream, 10))
		rival.Data = []byte("another 1 2")
		_, err := f.js.PublishMsg(t.Context(), rival)
		assert.NoError(t, err)
	})
	var ran atomic.Bool
	left := make(chan struct{})
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran.Store(true)
		return succeed(run)
	}), lane.Options{Lost: func(context.Context, protocol.Lane) { close(left) }})
	await(t, left, "the lane is kept")
	require.False(t, ran.Load(), "two workers hold one lane")
}
