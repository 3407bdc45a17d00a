package bench

import (
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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
