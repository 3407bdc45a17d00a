package lane_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lose has a worker start a call and lose its connection for good.
func (f *fleet) lose(p *lane.Publisher, call *protocol.Call, o lane.Options) {
	f.t.Helper()
	nc := f.connect()
	started := make(chan struct{}, 1)
	h, err := lane.NewHolder(f.t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		started <- struct{}{}
		<-ctx.Done()
		return interrupted(ctx, run)
	}), o)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	put(f.t, p, call)
	<-started
	nc.Close()
	cancel()
	require.NoError(f.t, <-done)
}

// Law: work resumes within the lease and a second after its worker was seen last, and not before
// the lease is over, by the server's clock. On a busy machine the earliest of some counts.
func TestTakeover_WithinTheLeaseAndASecond(t *testing.T) {
	t.Parallel()
	const lease, tries = 2 * time.Second, 8
	for try := 1; ; try++ {
		passed := takenOverAfter(t, lease)
		t.Logf("taken over %s after the last heartbeat, with a lease of %s", passed, lease)
		require.GreaterOrEqual(t, passed, lease, "taken over while it may have gone on")
		if passed < lease+time.Second || try == tries {
			require.Less(t, passed, lease+time.Second+busyMachine)
			return
		}
	}
}

// takenOverAfter has another worker take a call over from a lost one, and returns how long after
// its last heartbeat that was.
func takenOverAfter(t *testing.T, lease time.Duration) time.Duration {
	t.Helper()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(lease)
	call := newCall("s", exclusive("account/a"))
	f.lose(p, call, lane.Options{Worker: "lost"})
	claims, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(t, err)
	lost, err := claims.GetLastMsgForSubject(t.Context(), wire.HeartbeatsFilter(factFleet, protocol.DefaultPool))
	require.NoError(t, err)
	taken := make(chan time.Time, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		claim, err := claims.GetLastMsgForSubject(ctx, wire.ClaimSubject(factFleet, call.Pool, wire.HashLane(call.Lane())))
		if assert.NoError(t, err) {
			select {
			case taken <- claim.Time:
			default: // on a busy machine this worker may have lost the lane, too
			}
		}
		return succeed(run)
	}), lane.Options{Worker: "next"})
	require.GreaterOrEqual(t, f.await(p, call).Attempt, 2)
	f.requireQuiet()
	return (<-taken).Sub(lost.Time)
}

// busyMachine is what a test allows for a machine with much else to do.
const busyMachine = 10 * time.Second

// Law: who has what only one process can have takes over from its own earlier life at once.
func TestTakeover_FromAnEarlierLifeAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	f.lose(p, call, lane.Options{Worker: "before", AckWait: time.Hour, Origin: "here#1"})
	f.hold(succeeds, lane.Options{Worker: "there", AckWait: time.Hour, Origin: "there#1"})
	f.hold(succeeds, lane.Options{Worker: "after", AckWait: time.Hour, Origin: "here#2"})
	require.Equal(t, 2, f.await(p, call).Attempt)
	f.requireQuiet()
}

// Law: a claim of a worker that is alive is not taken over, whoever is given the ready message
// again, and whatever its name is.
func TestTakeover_NotFromAWorkerThatIsAlive(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	begun, end := make(chan struct{}, 9), make(chan struct{})
	work := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		begun <- struct{}{}
		<-end
		return succeed(run)
	})
	f.hold(work, lane.Options{AckWait: briefLease, Worker: "both", Slots: 1})
	call := newCall("s", exclusive("account/a"))
	put(t, p, call)
	<-begun
	seen, acks := f.claims(), f.overhear("$JS.ACK."+wire.CallsStream(factFleet)+".>")
	f.hold(work, lane.Options{AckWait: briefLease, Worker: "both"}) // the first one has no slot, so this is given the lane
	s, err := store.Open(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	ready, err := s.Next(t.Context(), readyOf(call.Lane()), 0)
	require.NoError(t, err)
	require.NoError(t, s.Redeliver(t.Context(), protocol.DefaultPool, ready.Sequence))
	second := "$JS.ACK." + wire.CallsStream(factFleet) + "." + wire.ReadyConsumer(protocol.DefaultPool) + ".2."
	require.Eventually(t, func() bool { // it hands the second delivery back, or has taken the lane
		return len(begun) > 0 || slices.ContainsFunc(acks.all(), func(ack *nats.Msg) bool { return strings.HasPrefix(ack.Subject, second) })
	}, patience, 10*time.Millisecond, "nobody is given the lane again")
	require.Equal(t, seen, f.claims())
	require.Empty(t, begun)
	close(end)
	require.Equal(t, 1, f.await(p, call).Attempt)
	f.requireQuiet()
}

// claims is the claim of each lane, by its subject.
func (f *fleet) claims() map[string]uint64 {
	f.t.Helper()
	found := map[string]uint64{}
	for _, subject := range []string{wire.ClaimSubject(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(protocol.Lane("account/a")))} {
		stream, err := f.js.Stream(f.t.Context(), wire.ClaimsStream(protocol.DefaultFleet))
		require.NoError(f.t, err)
		msg, err := stream.GetLastMsgForSubject(f.t.Context(), subject)
		require.NoError(f.t, err)
		found[subject] = msg.Sequence
	}
	return found
}

// A claim that a killed server brings back, or whose removal was lost, is removed by its owner.
func TestTakeover_AClaimThatNobodyHoldsIsDisowned(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(succeeds, lane.Options{Worker: "w", AckWait: time.Hour})
	first := newCall("s", exclusive("account/a"))
	claims, err := f.nc.SubscribeSync(wire.ClaimSubject(protocol.DefaultFleet, first.Pool, wire.HashLane(first.Lane())))
	require.NoError(t, err)
	put(t, p, first)
	f.await(p, first)
	f.requireQuiet()
	claim, err := claims.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	_, err = f.js.Publish(t.Context(), claim.Subject, claim.Data)
	require.NoError(t, err)
	second := newCall("s", exclusive("account/a"))
	put(t, p, second)
	r := f.await(p, second)
	require.Equal(t, 1, r.Attempt, "nothing was interrupted")
	f.requireQuiet()
}
