package lane_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// history is what really happened on lanes: starts and ends, with the calls' sequences.
type history struct {
	lane.DefaultHost

	mu       sync.Mutex
	running  map[protocol.Lane]int
	last     map[protocol.Lane]uint64
	starts   map[protocol.CallID]int
	overlaps []string
	disorder []string
}

func newHistory() *history {
	return &history{running: map[protocol.Lane]int{}, last: map[protocol.Lane]uint64{}, starts: map[protocol.CallID]int{}}
}

// Execute implements lane.Executor and records.
func (h *history) Execute(_ context.Context, run *lane.Run) protocol.Result {
	key := run.Call.Lane()
	h.mu.Lock()
	if h.running[key]++; h.running[key] > 1 {
		h.overlaps = append(h.overlaps, fmt.Sprintf("%s at %d", key, run.Sequence))
	}
	if run.Sequence < h.last[key] {
		h.disorder = append(h.disorder, fmt.Sprintf("%s: %d after %d", key, run.Sequence, h.last[key]))
	}
	h.last[key] = run.Sequence
	h.starts[run.Call.ID]++
	h.mu.Unlock()
	r := succeed(run)
	h.mu.Lock()
	h.running[key]--
	h.mu.Unlock()
	return r
}

func (h *history) Release(protocol.Lane) {}

// requireLawful checks L1, L2 and, when nothing was lost, that every call started once.
func (h *history) requireLawful(t *testing.T, once bool) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Empty(t, h.overlaps)
	require.Empty(t, h.disorder)
	if once {
		for id, n := range h.starts {
			require.Equal(t, 1, n, "starts of call %s", id)
		}
	}
}

// callers run calls on a few lanes, each caller one after the other, until each has made n.
func callers(t *testing.T, f *fleet, p *lane.Publisher, count, n, lanes int) (slowest time.Duration) {
	t.Helper()
	var worst atomic.Int64
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() {
			session := protocol.NewSessionID()
			results := make(chan protocol.CallID, 1)
			watch, err := calls.NewResults(f.nc, protocol.DefaultFleet, nil).Watch(t.Context(), session,
				func(r *protocol.Result) { results <- r.CallID }, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer watch.Stop()
			for k := range n {
				call := newCall(session, exclusive(fmt.Sprintf("account/%d", (i+k)%lanes)))
				start := time.Now()
				if err := p.Enqueue(t.Context(), lane.Outgoing{Call: call}); err != nil {
					t.Error(err)
					return
				}
				if !awaitOne(t, p, call, results) {
					return
				}
				worst.Store(max(worst.Load(), int64(time.Since(start))))
			}
		})
	}
	group.Wait()
	return time.Duration(worst.Load())
}

// awaitOne waits for the result of a call, looking for it and waking its lane once a second.
func awaitOne(t *testing.T, p *lane.Publisher, call *protocol.Call, results <-chan protocol.CallID) bool {
	t.Helper()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case id := <-results:
			if id == call.ID {
				return true
			}
		case <-look.C:
			if r, err := p.Result(t.Context(), call.SessionID, call.ID); err == nil && r != nil {
				return true
			}
			_ = p.Wake(t.Context(), call) // the next one may get through
		case <-limit.C:
			t.Errorf("call %s on %s got no result", call.ID, call.Lane())
			return false
		}
	}
}

func TestCluster_OrderExclusivityAndNoStall(t *testing.T) {
	t.Parallel()
	f, _ := newClusterFleet(t)
	p := f.publisher()
	h := newHistory()
	for range 2 {
		f.hold(h, lane.Options{Slots: 8})
	}
	slowest := callers(t, f, p, 8, 60, 4)
	t.Logf("slowest of 480 calls: %s", slowest)
	h.requireLawful(t, true)
	f.requireQuiet()
}

func TestCluster_LeaderIsLost(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	p := f.publisher()
	h := newHistory()
	for range 2 {
		f.hold(h, lane.Options{Slots: 8})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		callers(t, f, p, 6, 60, 4)
	}()
	for range 2 {
		leader := -1
		require.Eventually(t, func() bool {
			leader = c.Leader(wire.CallsStream(protocol.DefaultFleet))
			return leader >= 0
		}, patience, 10*time.Millisecond, "no leader")
		c.Stop(leader)
		require.Eventually(t, func() bool { return c.Leader(wire.CallsStream(protocol.DefaultFleet)) >= 0 }, patience, 10*time.Millisecond)
		c.Start(leader)
	}
	<-done
	h.requireLawful(t, false)
	f.requireQuiet()
}

// Guard: a server that is cut off from the others goes on confirming renewals as the leader that it
// was, while they deliver the lane again. Its worker must have stopped by then.
func TestCluster_LeaderIsCutOffWithItsWorker(t *testing.T) {
	t.Parallel()
	f, c := newFleetOn(t, natsiotest.NewPartableCluster(t))
	o := lane.Options{Worker: "cut-off"}
	started, stopped, again := make(chan struct{}), make(chan time.Time, 1), make(chan time.Time, 1)
	work := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(started)
		<-ctx.Done()
		stopped <- time.Now()
		return interrupted(ctx, run)
	})
	_, err := lane.NewHolder(t.Context(), f.nc, work, o) // makes the consumer
	require.NoError(t, err)
	leader := -1
	require.Eventually(t, func() bool {
		leader = c.ConsumerLeader(wire.CallsStream(protocol.DefaultFleet), wire.ReadyConsumer(protocol.DefaultPool))
		return leader >= 0
	}, patience, 10*time.Millisecond, "no leader")
	f.dial = func() *nats.Conn { return c.ConnectTo(leader) }
	f.nc = c.ConnectTo((leader + 1) % len(c.Servers))
	beats := f.overhear(wire.HeartbeatSubject(factFleet, protocol.DefaultPool, ">"))
	f.hold(work, o)
	p := f.publisher()
	call := newCall(protocol.NewSessionID(), exclusive("account/1"))
	put(t, p, call)
	<-started
	f.dial = func() *nats.Conn { return c.ConnectTo((leader + 1) % len(c.Servers)) }
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		again <- time.Now()
		return succeed(run)
	}), lane.Options{Worker: "with-the-others"})
	require.Eventually(t, func() bool {
		for _, n := range beats.lives(t, o.Worker) {
			return n > 1
		}
		return false
	}, patience, 10*time.Millisecond, "it is not renewed")
	c.Part(leader, true)
	wait := time.After(patience)
	at := func(event <-chan time.Time, otherwise string) (at time.Time) {
		select {
		case at = <-event:
		case <-wait:
			t.Fatal(otherwise)
		}
		return at
	}
	require.True(t, at(stopped, "the worker does not notice").Before(at(again, "the others do not go on")), "started again while it ran")
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	c.Part(leader, false)
}

// Guard: a leader refuses a call of which it has an attempt under way, also when it is cut off, and
// the attempt is lost once the others have a leader of their own. Such a call is not accepted yet.
func TestCluster_RefusedByALeaderThatIsCutOffIsNotAccepted(t *testing.T) {
	t.Parallel()
	f, c := newFleetOn(t, natsiotest.NewPartableCluster(t))
	stream := wire.CallsStream(protocol.DefaultFleet)
	leader := -1
	require.Eventually(t, func() bool {
		leader = c.Leader(stream)
		return leader >= 0
	}, patience, 10*time.Millisecond, "no leader")
	f.nc = c.ConnectTo(leader)
	p := f.publisher()
	c.Part(leader, true)
	call := newCall(protocol.NewSessionID(), exclusive("account/1"))
	attempts := f.overhear(wire.CallSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), call.ID))
	accepted := make(chan error, 1)
	go func() { accepted <- p.Enqueue(t.Context(), lane.Outgoing{Call: call}) }()
	require.Eventually(t, func() bool {
		for i, s := range c.Servers {
			if i != leader && s.JetStreamIsStreamLeader(server.DEFAULT_GLOBAL_ACCOUNT, stream) {
				return true
			}
		}
		return false
	}, patience, 10*time.Millisecond, "the others choose no leader")
	require.Eventually(t, func() bool { // one was given up, the next one refused, and another one made
		return len(attempts.all()) > 2 || len(accepted) > 0
	}, patience, 10*time.Millisecond, "no attempt follows one that was refused")
	c.Part(leader, false)
	select {
	case err := <-accepted:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("neither accepted nor refused")
	}
	f.ensurePool(0) // the servers have found each other again
	f.hold(newHistory(), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}

// A cluster whose stream is full says so before it says that a message is there already. That must
// neither keep a lane from being taken over, nor pass a call off as never started whose start mark
// is stored.
func TestCluster_AFullStreamHidesNoStart(t *testing.T) {
	t.Parallel()
	f, _ := newClusterFleet(t)
	f.ensurePool(briefLease)
	call := newCall("s", exclusive("account/1"))
	call.Delivery = protocol.AtMostOnce
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	f.takeAndDie() // it has started the call
	f.publish(wire.StartSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID, 1), nil, []byte("lost 1 1"))
	f.fill(2)
	p := f.publisher()
	require.ErrorIs(t, p.Enqueue(t.Context(), lane.Outgoing{Call: newCall("s", exclusive("account/2"))}), lane.ErrFull)
	ran := make(chan protocol.CallID, 9)
	f.hold(tells(ran), lane.Options{})
	require.Equal(t, protocol.StatusOutcomeUnknown, f.await(p, call).Status)
	require.Empty(t, ran)
	f.requireQuiet()
}

// While a server is missing, nobody knows whether it is about to come back, and claims store marks.
// A stream that has no room for them has to empty all the same.
func TestCluster_AFullStreamIsServedWhileAServerIsMissing(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	f.ensurePool(0)
	call := newCall("s", exclusive("account/1"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	f.fill(1)
	other := (max(c.Leader(wire.CallsStream(protocol.DefaultFleet)), 0) + 1) % len(c.Servers)
	c.Stop(other)
	f.dial = func() *nats.Conn { return c.ConnectTo((other + 1) % len(c.Servers)) }
	f.nc = f.dial()
	othersLead(t, c, other)
	p := f.publisher()
	f.hold(newHistory(), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}

// A lane whose worker was lost while a server is missing, too, waits for room, but not with a slot:
// others make that room.
func TestCluster_ALaneThatWaitsForRoomKeepsNoSlot(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	f.ensurePool(briefLease)
	call, other := newCall("s", exclusive("account/1")), newCall("s", exclusive("account/2"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	f.takeAndDie()
	f.fill(1)
	off := (max(c.Leader(wire.CallsStream(protocol.DefaultFleet)), 0) + 1) % len(c.Servers)
	c.Stop(off)
	f.dial = func() *nats.Conn { return c.ConnectTo((off + 1) % len(c.Servers)) }
	f.nc = f.dial()
	othersLead(t, c, off)
	var err error
	f.js, err = jetstream.New(f.nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	p := f.publisher()
	h := f.hold(newHistory(), lane.Options{Slots: 1})
	require.Eventually(t, func() bool { return h.Held() == 1 }, patience, time.Millisecond)
	f.makeRoomFor(other)
	require.Equal(t, protocol.StatusOK, f.await(p, other).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
}

// makeRoomFor has a full stream take one more call, which makes its lane ready.
func (f *fleet) makeRoomFor(call *protocol.Call) {
	f.t.Helper()
	p := f.publisher()
	f.fill(2)
	require.Eventually(f.t, func() bool {
		return p.Enqueue(f.t.Context(), lane.Outgoing{Call: call}) == nil
	}, patience, time.Millisecond, "no room")
}

// fill makes the calls stream so small that it has no room any more.
func (f *fleet) fill(messages int64) {
	f.t.Helper()
	f.insist(func() error {
		calls, err := f.js.Stream(f.t.Context(), wire.CallsStream(protocol.DefaultFleet))
		if err == nil {
			config := calls.CachedInfo().Config
			config.MaxMsgs = messages
			_, err = f.js.UpdateStream(f.t.Context(), config)
		}
		return err
	})
}

// othersLead waits until the others have leaders of their own for what a server leads that is cut
// off from them.
func othersLead(t *testing.T, c *natsiotest.Cluster, off int) {
	t.Helper()
	fleet, account := protocol.DefaultFleet, server.DEFAULT_GLOBAL_ACCOUNT
	require.Eventually(t, func() bool {
		var calls, claims, results, ready bool
		for i, s := range c.Servers {
			calls = calls || i != off && s.JetStreamIsStreamLeader(account, wire.CallsStream(fleet))
			results = results || i != off && s.JetStreamIsStreamLeader(account, wire.ResultsStream(fleet))
			claims = claims || i != off && s.JetStreamIsStreamLeader(account, wire.ClaimsStream(fleet))
			ready = ready || i != off && s.JetStreamIsConsumerLeader(account, wire.CallsStream(fleet), wire.ReadyConsumer(protocol.DefaultPool))
		}
		return calls && claims && results && ready
	}, patience, 10*time.Millisecond, "the others choose no leaders")
}
