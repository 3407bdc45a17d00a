package store

import (
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker that says that its lease is endless keeps others from its lanes for no longer than any.
func TestHeartbeat_LeasesEnd(t *testing.T) {
	t.Parallel()
	for said, want := range map[int64]time.Duration{10_000: 10 * time.Second, 1 << 42: natsio.MaxAckWait, math.MaxInt64: natsio.MaxAckWait} {
		require.Equal(t, want, (&StoredHeartbeat{Heartbeat: wire.Heartbeat{LeaseMS: said}}).Lease())
	}
}

// Law: a ready message that is to be delivered again is, also when the consumer's leader fails
// before anybody asks for it, and where a holder had it wait for long.
func TestRedeliver_OutlivesTheLeader(t *testing.T) {
	t.Parallel()
	c, pool := natsiotest.NewCluster(t), protocol.DefaultPool
	require.NoError(t, natsio.MakePool(t.Context(), c.JS, c.Name, pool))
	s, err := Open(t.Context(), c.NC, c.Name)
	require.NoError(t, err)
	lane := protocol.Lane("l/1")
	made, err := s.MakeReady(t.Context(), pool, lane)
	require.NoError(t, err)
	require.True(t, made)
	stream, ready := wire.CallsStream(c.Name), wire.ReadyConsumer(pool)
	consumer, err := c.JS.Consumer(t.Context(), stream, ready)
	require.NoError(t, err)
	msg, err := consumer.Next(jetstream.FetchMaxWait(time.Minute))
	require.NoError(t, err)
	meta, err := msg.Metadata()
	require.NoError(t, err)
	s.Nack(msg.Reply(), time.Hour)

	require.NoError(t, s.Redeliver(t.Context(), pool, meta.Sequence.Stream))
	before := c.ConsumerLeader(stream, ready)
	require.Eventually(t, func() bool {
		leader := c.ConsumerLeader(stream, ready)
		if leader == before { // at first, or elected again
			_, _ = c.NC.Request("$JS.API.CONSUMER.LEADER.STEPDOWN."+stream+"."+ready, nil, time.Minute)
		}
		return leader >= 0 && leader != before
	}, 2*time.Minute, 100*time.Millisecond)
	require.Eventually(t, func() bool { // the new leader does not hear requests at once
		again, err := consumer.Next(jetstream.FetchMaxWait(time.Second))
		return err == nil && again.Subject() == msg.Subject()
	}, time.Minute, 10*time.Millisecond)
}

// The claim of a visit names no ready message, and is let go like any other.
func TestRedeliver_NothingIsNoFault(t *testing.T) {
	t.Parallel()
	s := open(t, natsio.Topology{})
	require.NoError(t, natsio.MakePool(t.Context(), s.JS, s.Fleet, protocol.DefaultPool))
	require.NoError(t, s.Redeliver(t.Context(), protocol.DefaultPool, 0))
	require.NoError(t, s.RedeliverAfter(t.Context(), protocol.DefaultPool, time.Second, 0))
}
