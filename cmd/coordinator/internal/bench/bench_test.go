package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(t *testing.T) Options {
	t.Helper()
	connect, stop, err := Embedded(t.Context(), t.TempDir(), false, false, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(stop)
	const fleet = "tf-bench"
	nc, err := connect("test")
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{Fleet: fleet}))
	_, _, err = natsio.EnsurePool(t.Context(), js, fleet, protocol.DefaultPool, time.Minute) // a busy machine ends no lease, so nothing runs twice
	require.NoError(t, err)
	return Options{
		Fleet: fleet, Traffic: Traffic{Lanes: 7, Callers: 20, Calls: 300, Workers: 2, Slots: 4}, Payload: 100,
		Baseline: 50 * time.Millisecond, Connect: connect, Logger: slog.New(slog.DiscardHandler),
	}
}

func TestRun_MeasuresEveryCallInOrder(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.SlowLane = 5 * time.Millisecond
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.Zero(t, r.Violations)
	require.Positive(t, r.SlowCalls)
	require.Positive(t, r.CallsPerS)
	require.Positive(t, r.Baseline.PublishPerS)
	require.Positive(t, r.RatioToReq)
	require.LessOrEqual(t, r.P50US, r.P99US)
	require.LessOrEqual(t, r.P99US, r.MaxUS)
}

func TestRun_NamesEveryBadOption(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Options{Traffic: Traffic{Lanes: 0, Callers: -1, Calls: 1, Workers: 1, Slots: 1, Work: -1}})
	require.ErrorContains(t, err, "--lanes 0: must be 1 to")
	require.ErrorContains(t, err, "--callers -1: must be 1 to")
	require.ErrorContains(t, err, "--work -1ns: must be 0 or more")
}

// A measurement that cannot find a violation would be worth nothing.
func TestWitness_CountsOverlapAndDisorder(t *testing.T) {
	t.Parallel()
	w := newWitness(Options{})
	run := func(seq uint64) *lane.Run {
		return &lane.Run{Sequence: seq, Call: &protocol.Call{Resources: []protocol.Use{{Key: "bench/1", Access: protocol.Exclusive}}}}
	}
	w.Execute(t.Context(), run(5))
	require.Zero(t, w.violations.Load())
	w.Execute(t.Context(), run(4))
	require.EqualValues(t, 1, w.violations.Load(), "order")
	found, _ := w.lanes.Load(protocol.Lane("bench/1"))
	state, ok := found.(*laneState)
	require.True(t, ok)
	state.running.Add(1) // somebody else is at it
	w.Execute(t.Context(), run(9))
	require.EqualValues(t, 2, w.violations.Load(), "overlap")
}

// A session that is idle costs nothing.
func TestRun_SessionsCostTheirCallsOnly(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Lanes, o.Callers, o.Calls, o.Rate, o.Workers, o.Slots, o.Baseline = 500, 8, 750, 150, 1, 64, 0
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.Zero(t, r.Violations)
	require.GreaterOrEqual(t, r.Seconds, 5.0, "as --rate says")
	require.Less(t, r.Messages, 12.0, "messages a call: 10 of its own, and what a worker says however much it has")
}

// TestRun_KeepsToItsRate: calls begin no sooner than the rate says.
func TestRun_KeepsToItsRate(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Calls, o.Rate, o.SlowLane, o.Baseline = 50, 100, 0, 0
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.GreaterOrEqual(t, r.Seconds, 0.5)
}

// TestRun_DrainsWhatWaits: all that waits is run before the callers begin, beside probes.
func TestRun_DrainsWhatWaits(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Waiting, o.Calls, o.SlowLane = 1500, 50, 0 // more than one answer has
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.Zero(t, r.Violations)
	require.Equal(t, o.Waiting, r.Drain.Calls)
	require.Positive(t, r.Drain.Probes)
	require.Positive(t, r.Drain.RatioToPub)
	require.LessOrEqual(t, r.Drain.ProbeP99US, r.Drain.ProbeMaxUS)
	require.Positive(t, r.RatioOfP50)
	o.Exec.Command = "true"
	require.ErrorContains(t, o.Validate(), "--waiting 1500: not with --exec")
}

// As docs/benchmarks.md compares them: -v shows the figures, -args -calls=100000 makes enough
// calls.
var callCount = flag.Int("calls", 300, "calls of each engine")

func TestRun_EveryEngineKeepsOrder(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]startFunc{"lanes": startLanes, "partitions": startPartitions, "consumers": startConsumers} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			o.Calls, o.Baseline, o.SlowLane = *callCount, 0, 5*time.Millisecond
			for range 2 { // it leaves nothing behind that would hinder the next
				r, err := run(t.Context(), o, start)
				require.NoError(t, err)
				t.Logf("%.0f calls/s, p99 %.0f us, %.0f us of processor a call", r.CallsPerS, r.P99US, r.CPUUS)
				require.Zero(t, r.Errors)
				require.Zero(t, r.Violations)
				require.Positive(t, r.SlowCalls)
				require.Positive(t, r.CallsPerS)
				require.Positive(t, r.Messages)
			}
		})
	}
}

func TestPartition_IsStableAndSpread(t *testing.T) {
	t.Parallel()
	used := map[int]int{}
	for i := range 6400 {
		l := protocol.Lane(fmt.Sprintf("bench/%d", i))
		n := partition(l, 64)
		require.Equal(t, n, partition(l, 64))
		used[n]++
	}
	require.Len(t, used, 64)
}

func TestConsumers_AKeyWithoutConsumerIsTriedAgain(t *testing.T) {
	t.Parallel()
	o := options(t)
	nc, err := o.Connect("test")
	require.NoError(t, err)
	defer nc.Close()
	started, err := startConsumers(t.Context(), nc, o, newWitness(Options{}))
	require.NoError(t, err)
	defer started.stop(t.Context())
	k, ok := started.(*keyed)
	require.True(t, ok)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, k.ensure(ended, "key"), context.Canceled)
	require.NoError(t, k.ensure(t.Context(), "key"))
	require.NoError(t, k.ensure(ended, "key"), "it is made once")
}

func TestRun_CommandsRunInTheSandboxesOfTheirLanes(t *testing.T) {
	t.Parallel()
	opened, caps, err := drivers.Open(t.Context(), drivers.Auto, &drivers.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
		t.Skipf("NOT TESTED: no driver isolates here: %v", err)
	}
	require.NoError(t, err)
	o := options(t)
	o.Lanes, o.Callers, o.Calls, o.Workers, o.Payload, o.Baseline = 3, 6, 60, 1, 0, 20*time.Millisecond
	o.Exec = Exec{Command: "echo called >>calls", Driver: opened, Caps: caps, Data: t.TempDir()}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.Zero(t, r.Violations)
	require.Positive(t, r.CallsPerS)
	require.Positive(t, r.Exec.NoopPerS)
	require.Positive(t, r.Exec.PlainPerS)
	require.Positive(t, r.Exec.OpenMS)
	require.InEpsilon(t, r.CallsPerS/r.Exec.PlainPerS, r.RatioToPlain, 1e-9)
	workspaces, err := os.ReadDir(o.Exec.Data + "/sandboxes")
	require.NoError(t, err)
	lines := 0
	for _, workspace := range workspaces {
		calls, err := os.ReadFile(o.Exec.Data + "/sandboxes/" + workspace.Name() + "/workspace/calls")
		require.NoError(t, err)
		lines += len(calls) / len("called\n")
	}
	require.Len(t, workspaces, o.Lanes)
	require.Equal(t, o.Lanes+o.Calls, lines, "each lane's first call, and those that were measured")
}

func TestRun_CommandsDoNotTakeWorkAndPayload(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Exec.Command, o.Work, o.Payload = "true", time.Second, 0
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "--work, --slow-lane and --payload")
}

// slowSandbox runs a command until end gets a value.
type slowSandbox struct {
	sandbox.Sandbox

	began, end chan struct{}
}

func (s slowSandbox) Exec(context.Context, sandbox.Cmd) (sandbox.Result, error) {
	s.began <- struct{}{}
	<-s.end
	return sandbox.Result{}, nil
}

// A check that cannot find two commands at once would be worth nothing.
func TestWatchedSandbox_CountsOverlap(t *testing.T) {
	t.Parallel()
	var overlaps atomic.Int64
	slow := slowSandbox{began: make(chan struct{}, 2), end: make(chan struct{})}
	s := watchedSandbox{Sandbox: slow, overlaps: &overlaps}
	done := make(chan error, 2)
	run := func() {
		_, err := s.Exec(t.Context(), sandbox.Cmd{})
		done <- err
	}
	go run()
	<-slow.began
	require.Zero(t, overlaps.Load())
	go run()
	<-slow.began
	close(slow.end)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.EqualValues(t, 1, overlaps.Load())
}

// keyed gives each resource a subject and a durable consumer with one message in flight, made when
// it is first used. Callers tell the workers of it; all workers then wait for its messages.
type keyed struct {
	*plain

	options   Options
	consumers sync.Map // wire.LaneHash -> *keyConsumer
}

// keyConsumer is the consumer of a key: making it is tried once.
type keyConsumer struct{ ready func() error }

func startConsumers(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	p, err := startPlain(ctx, nc, o, w)
	if err != nil {
		return nil, err
	}
	k := &keyed{plain: p, options: o}
	p.subject = func(_ context.Context, call *protocol.Call) (string, error) {
		hash := wire.HashLane(call.Lane())
		return plainSubject(o) + "." + string(hash), k.ensure(ctx, hash)
	}
	return k, nil
}

// ensure returns when a key has its consumer. The first call for a key makes it, and other calls
// wait. After a failure the next call tries again.
func (k *keyed) ensure(ctx context.Context, hash wire.LaneHash) error {
	made, known := k.consumers.Load(hash)
	if !known {
		made, _ = k.consumers.LoadOrStore(hash, &keyConsumer{sync.OnceValue(func() error { return k.make(ctx, string(hash)) })})
	}
	key, _ := made.(*keyConsumer)
	err := key.ready()
	if err != nil {
		k.consumers.CompareAndDelete(hash, key)
		k.options.Logger.WarnContext(ctx, "key has no consumer", slog.Any("error", err))
	}
	return err
}

// make makes the consumer of a key and has the workers serve it.
func (k *keyed) make(ctx context.Context, key string) error {
	_, err := k.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: key, FilterSubject: plainSubject(k.options) + "." + key,
		AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1,
	})
	if err != nil {
		return fmt.Errorf("consumer of a key: %w", err)
	}
	var faults []error
	for _, worker := range k.workers {
		own, err := worker.js.Consumer(ctx, plainSubject(k.options), key)
		if err == nil {
			err = worker.consume(ctx, own)
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

const partitions = 64

// startPartitions gives each of a fixed number of partitions a subject and a durable consumer with
// one message in flight. Any worker takes the next message of any partition. Resources that share a
// partition wait for each other.
func startPartitions(ctx context.Context, nc *nats.Conn, o Options, w *witness) (engine, error) {
	p, err := startPlain(ctx, nc, o, w)
	if err != nil {
		return nil, err
	}
	p.subject = func(_ context.Context, call *protocol.Call) (string, error) {
		return fmt.Sprintf("%s.%d.%s", plainSubject(o), partition(call.Lane(), partitions), wire.HashLane(call.Lane())), nil
	}
	for i := range partitions {
		consumer, err := p.stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: fmt.Sprintf("partition-%d", i), FilterSubject: fmt.Sprintf("%s.%d.*", plainSubject(o), i),
			AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 1,
		})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("partition %d: %w", i, err), p.end(ctx))
		}
		for _, worker := range p.workers {
			own, err := worker.js.Consumer(ctx, plainSubject(o), consumer.CachedInfo().Name)
			if err == nil {
				err = worker.consume(ctx, own)
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("partition %d: %w", i, err), p.end(ctx))
			}
		}
	}
	return p, nil
}

// partition is where a lane belongs, for ever.
func partition(l protocol.Lane, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(l)) // a hash takes everything
	return int(h.Sum32() % uint32(n))
}
