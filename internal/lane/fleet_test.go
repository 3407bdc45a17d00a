package lane_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(workerVariable); settings != "" {
		fmt.Fprintln(os.Stderr, beWorker(settings))
		os.Exit(1)
	}
	if settings := os.Getenv(limitedVariable); settings != "" {
		fmt.Fprintln(os.Stderr, beLimitedWorker(settings))
		os.Exit(1)
	}
	if settings := os.Getenv(limitedServerVariable); settings != "" {
		fmt.Fprintln(os.Stderr, beLimitedServer(settings))
		os.Exit(1)
	}
	natsiotest.Overlap()
	goleak.VerifyTestMain(m)
}

// fleet is servers with the streams of a fleet, and what a test puts around them.
type fleet struct {
	t      *testing.T
	dial   func() *nats.Conn
	nc     *nats.Conn
	js     jetstream.JetStream
	logger *slog.Logger
}

// patience bounds what comes soon, also on a machine that has much else to do.
const patience = 3 * time.Minute

// briefLease is for leases whose end is waited for. One that is shorter ends by itself on a busy
// machine, while its worker is well.
const briefLease = 3 * time.Second

// steadyLease is for leases that do not end while their worker is well, however busy the machine
// is.
const steadyLease = time.Minute

// newFleet is a fleet on one server, inside the process.
func newFleet(t *testing.T) *fleet {
	t.Helper()
	return around(t, natsiotest.New(t, natsio.Topology{}))
}

func around(t *testing.T, f *natsiotest.Fleet) *fleet {
	t.Helper()
	return &fleet{t: t, dial: f.Connect, nc: f.NC, js: f.JS, logger: f.Logger}
}

// newClusterFleet is newFleet on three servers.
func newClusterFleet(t *testing.T) (*fleet, *natsiotest.Cluster) {
	t.Helper()
	return newFleetOn(t, natsiotest.NewCluster(t))
}

// newFleetOn is newFleet on a cluster that is there.
func newFleetOn(t *testing.T, c *natsiotest.Cluster) (*fleet, *natsiotest.Cluster) {
	t.Helper()
	f := &fleet{t: t, logger: slog.New(slog.DiscardHandler), nc: c.NC, js: c.JS, dial: c.Connect}
	return f, c
}

// connect makes one more connection, as another process would.
func (f *fleet) connect() *nats.Conn {
	f.t.Helper()
	nc := f.dial()
	f.t.Cleanup(nc.Close)
	return nc
}

func (f *fleet) publisher() *lane.Publisher {
	f.t.Helper()
	var p *lane.Publisher
	require.EventuallyWithT(f.t, func(t *assert.CollectT) { // as for holders
		var err error
		p, err = lane.NewPublisher(f.t.Context(), f.nc, protocol.DefaultFleet)
		require.NoError(t, err)
	}, patience, 100*time.Millisecond)
	return p
}

// holder is a running holder and the means to stop it.
type holder struct {
	*lane.Holder
	stop func() // drains and waits
}

// hold starts a holder on a connection of its own.
func (f *fleet) hold(host lane.Host, o lane.Options) *holder {
	f.t.Helper()
	if o.Worker == "" {
		o.Worker = wire.NewWorkerID("test")
	}
	if o.AckWait == 0 {
		o.AckWait = f.newLease(o.Pool)
	}
	o.Logger = f.logger
	nc := f.connect()
	var h *lane.Holder
	require.EventuallyWithT(f.t, func(t *assert.CollectT) { // servers that have just found each other may be slow to answer
		var err error
		h, err = lane.NewHolder(f.t.Context(), nc, host, o)
		require.NoError(t, err)
	}, patience, 100*time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	drain, abort := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, drain) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			limit := time.AfterFunc(patience, abort)
			cancel()
			select {
			case err := <-done:
				if err != nil {
					f.t.Errorf("holder: %v", err)
				}
			case <-time.After(2 * patience): // else a failed test whose calls never end hides all others
				f.t.Error("holder: its calls do not end")
			}
			limit.Stop()
			abort()
		})
	}
	f.t.Cleanup(stop)
	return &holder{Holder: h, stop: stop}
}

// newLease is the lease for a pool's consumer that a holder makes; 0 takes that of the one which is
// there, or the default: in a cluster, where leases end when servers choose another leader.
func (f *fleet) newLease(pool protocol.Pool) time.Duration {
	f.t.Helper()
	if pool == "" {
		pool = protocol.DefaultPool
	}
	_, err := f.js.Consumer(f.t.Context(), wire.CallsStream(protocol.DefaultFleet), wire.ReadyConsumer(pool))
	if f.nc.ConnectedClusterName() != "" || !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0
	}
	return steadyLease
}

// ensurePool makes the pool's consumer; servers that have just found each other may not know the
// streams at once.
func (f *fleet) ensurePool(lease time.Duration) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		_, _, err := natsio.EnsurePool(f.t.Context(), f.js, protocol.DefaultFleet, protocol.DefaultPool, lease)
		return err == nil
	}, patience, 100*time.Millisecond, "no consumer")
}

// await polls for the stored result of a call.
func (f *fleet) await(p *lane.Publisher, c *protocol.Call) *protocol.Result {
	f.t.Helper()
	var result *protocol.Result
	var fault error // a busy machine may be slow to answer
	require.Eventually(f.t, func() bool {
		r, err := p.Result(f.t.Context(), c.SessionID, c.ID)
		result, fault = r, err
		return err == nil && r != nil
	}, patience, 2*time.Millisecond, "no result for call %s", c.ID)
	require.NoError(f.t, fault)
	return result
}

// insist repeats what servers refuse, as those of a cluster do while they choose a leader.
func (f *fleet) insist(do func() error) {
	f.t.Helper()
	require.EventuallyWithT(f.t, func(t *assert.CollectT) { require.NoError(t, do()) }, patience, 50*time.Millisecond)
}

// publish stores a message of a subject that has no message yet.
func (f *fleet) publish(subject string, header nats.Header, body []byte) {
	f.t.Helper()
	again := false
	f.insist(func() error {
		_, err := f.js.PublishMsg(f.t.Context(), &nats.Msg{Subject: subject, Header: header, Data: body})
		if again && refusedBySubject(err) { // only the answer was lost
			return nil
		}
		again = true
		return err
	})
}

// stored is how many messages the calls stream has.
func (f *fleet) stored() uint64 {
	f.t.Helper()
	var messages uint64
	f.insist(func() error {
		s, err := f.js.Stream(f.t.Context(), wire.CallsStream(protocol.DefaultFleet))
		if err == nil {
			messages = s.CachedInfo().State.Msgs
		}
		return err
	})
	return messages
}

// has reports whether the calls stream has so many messages, and the pool's consumer believes none
// of them to be held. Servers that choose a leader do not know.
func (f *fleet) has(messages uint64) bool {
	s, err := f.js.Stream(f.t.Context(), wire.CallsStream(protocol.DefaultFleet))
	if err != nil || s.CachedInfo().State.Msgs != messages {
		return false
	}
	c, err := s.Consumer(f.t.Context(), wire.ReadyConsumer(protocol.DefaultPool))
	return err == nil && c.CachedInfo().NumAckPending == 0
}

// requireQuiet waits until nothing is stored, held or pending.
func (f *fleet) requireQuiet() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.has(0) }, patience, 5*time.Millisecond,
		"calls stream keeps messages, or the consumer keeps deliveries")
}

// takeAndDie is a worker that claims the lane that is ready, and is lost. It returns the ready
// message and its life.
func (f *fleet) takeAndDie() (jetstream.Msg, wire.IncarnationID) {
	f.t.Helper()
	fleet, pool := protocol.DefaultFleet, protocol.DefaultPool
	var consumer jetstream.Consumer
	var msg jetstream.Msg
	f.insist(func() (err error) {
		if consumer, err = f.js.Consumer(f.t.Context(), wire.CallsStream(fleet), wire.ReadyConsumer(pool)); err == nil {
			msg, err = consumer.Next(jetstream.FetchMaxWait(patience))
		}
		return err
	})
	meta, err := msg.Metadata()
	require.NoError(f.t, err)
	beat := wire.Heartbeat{WorkerID: "lost", LeaseMS: consumer.CachedInfo().Config.AckWait.Milliseconds(), Beat: 1}
	body, err := wire.Encode(&beat)
	require.NoError(f.t, err)
	life := wire.NewIncarnationID()
	f.publish(wire.HeartbeatSubject(fleet, pool, life), nil, body)
	claim := wire.Claim{
		Lane: protocol.Lane(msg.Headers().Get(wire.HeaderLane)), WorkerID: "lost", Incarnation: life, Token: "lost",
		Ready: meta.Sequence.Stream,
	}
	body, err = wire.Encode(&claim)
	require.NoError(f.t, err)
	f.publish(wire.ClaimSubject(fleet, pool, wire.HashLane(claim.Lane)), nil, body)
	return msg, life
}

// storeResult stores the result of a call, as that worker may have done.
func (f *fleet) storeResult(c *protocol.Call) {
	f.t.Helper()
	r := wire.NewResult(c, protocol.StatusOK, nil)
	r.Value = wire.NoopResult{}
	body, err := wire.EncodeResult(&r)
	require.NoError(f.t, err)
	f.publish(wire.ResultSubject(protocol.DefaultFleet, c.SessionID, c.ID), nil, body)
}

// newCall makes a valid call that uses the given keys.
func newCall(session protocol.SessionID, uses ...protocol.Use) *protocol.Call {
	return &protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Pool: protocol.DefaultPool,
		Resources: uses, Delivery: protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
	}
}

func exclusive(key string) protocol.Use {
	return protocol.Use{Key: protocol.ResourceKey(key), Access: protocol.Exclusive}
}

func shared(key string) protocol.Use {
	return protocol.Use{Key: protocol.ResourceKey(key), Access: protocol.Shared}
}

func put(t *testing.T, p *lane.Publisher, calls ...*protocol.Call) {
	t.Helper()
	for _, c := range calls {
		require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: c}))
	}
}

// testHost is a lane host made of functions. Only execute is required.
type testHost struct {
	lane.DefaultHost

	execute          func(ctx context.Context, run *lane.Run) protocol.Result
	onAdmit          func(*lane.Run)
	canRun           func(lane.Requirements) bool
	mustHold         func(protocol.Lane) bool
	onSettled        func(*protocol.Call, *protocol.Result)
	onAlreadySettled func(*protocol.Call)
	onLost           func(protocol.Lane)
	onWorkerLost     func(id protocol.WorkerID)
}

// hostFunc is a host that only executes calls.
func hostFunc(execute func(ctx context.Context, run *lane.Run) protocol.Result) testHost {
	return testHost{execute: execute}
}

func (h testHost) Execute(ctx context.Context, run *lane.Run) protocol.Result {
	return h.execute(ctx, run)
}

func (h testHost) Admit(ctx context.Context, run *lane.Run) (leave func(), refusal *protocol.Result) {
	if h.onAdmit != nil {
		h.onAdmit(run)
	}
	return h.DefaultHost.Admit(ctx, run)
}

func (h testHost) Release(protocol.Lane) {}

func (h testHost) CanRun(n lane.Requirements) bool {
	return h.canRun == nil || h.canRun(n)
}

func (h testHost) MustHold(l protocol.Lane) bool {
	return h.mustHold != nil && h.mustHold(l)
}

func (h testHost) OnSettled(_ context.Context, c *protocol.Call, r *protocol.Result) {
	if h.onSettled != nil {
		h.onSettled(c, r)
	}
}

func (h testHost) OnAlreadySettled(_ context.Context, c *protocol.Call) {
	if h.onAlreadySettled != nil {
		h.onAlreadySettled(c)
	}
}

func (h testHost) OnWorkerLost(_ context.Context, id protocol.WorkerID) {
	if h.onWorkerLost != nil {
		h.onWorkerLost(id)
	}
}

func (h testHost) OnLost(_ context.Context, l protocol.Lane) {
	if h.onLost != nil {
		h.onLost(l)
	}
}

// tells is an executor that says which calls it has run.
func tells(ran chan<- protocol.CallID) testHost {
	return hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		return succeed(run)
	})
}

func succeed(run *lane.Run) protocol.Result {
	r := wire.NewResult(run.Call, protocol.StatusOK, nil)
	r.Value = wire.NoopResult{}
	return r
}

// interrupted is the result of a call whose context has ended.
func interrupted(ctx context.Context, run *lane.Run) protocol.Result {
	status, fault, _ := lane.Interrupted(ctx)
	return wire.NewResult(run.Call, status, fault)
}
