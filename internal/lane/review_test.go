package lane_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server that is killed brings a ready message back that the consumer has settled, after the
// lane's calls were looked after, and perhaps the claim with it. The lane is served all the same.
func TestReview_ASettledReadyMessageThatIsBack(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]func(f *fleet, l protocol.Lane, ready uint64){
		"no claim": func(*fleet, protocol.Lane, uint64) {},
		"the claim of a worker that lives": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Incarnation: f.aLife(), Ready: ready})
		},
		"a later claim of a worker that lives": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Incarnation: f.aLife(), Ready: ready + 1})
		},
		"a claim without an owner": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Ready: ready, Interrupted: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			consumer := f.pool(briefLease)
			call := newCall("s", exclusive("account/a"))
			msg := nats.NewMsg(readyOf(call.Lane()))
			msg.Header.Set(wire.HeaderLane, string(call.Lane()))
			ack, err := f.js.PublishMsg(t.Context(), msg)
			require.NoError(t, err)
			require.NoError(t, f.take(consumer).DoubleAck(t.Context())) // settled, and still there
			f.enqueueWithoutReady(call)
			f.lookAfterByHand()
			f.hold(succeeds, lane.Options{AckWait: briefLease})
			claims(f, call.Lane(), ack.Sequence)
			require.Equal(t, protocol.StatusOK, f.await(f.publisher(), call).Status)
			f.requireQuiet()
		})
	}
}

// lookAfterByHand takes what the caretaker would be told, as one does that finds the lanes ready.
func (f *fleet) lookAfterByHand() {
	f.t.Helper()
	care, err := natsio.EnsureReaper(f.t.Context(), f.js, factFleet, protocol.DefaultPool)
	require.NoError(f.t, err)
	entry, err := care.Next(jetstream.FetchMaxWait(patience))
	require.NoError(f.t, err)
	require.NoError(f.t, entry.DoubleAck(f.t.Context()))
}

// aLife is a life of the default pool.
func (f *fleet) aLife() wire.IncarnationID {
	f.t.Helper()
	stream, err := f.js.Stream(f.t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(f.t, err)
	var beat *jetstream.RawStreamMsg
	require.Eventually(f.t, func() bool {
		beat, err = stream.GetMsg(f.t.Context(), 1, jetstream.WithGetMsgSubject(wire.HeartbeatsFilter(factFleet, protocol.DefaultPool)))
		return err == nil
	}, patience, 10*time.Millisecond, "no heartbeat")
	return wire.LifeOfSubject(factFleet, beat.Subject)
}

// storeClaim stores a claim as a server does that brings it back.
func (f *fleet) storeClaim(l protocol.Lane, c wire.Claim) {
	f.t.Helper()
	c.Lane, c.WorkerID, c.Token = l, "w", "brought back"
	body, err := wire.EncodeClaim(&c)
	require.NoError(f.t, err)
	f.publish(wire.ClaimSubject(factFleet, protocol.DefaultPool, wire.HashLane(l)), nil, body)
}
