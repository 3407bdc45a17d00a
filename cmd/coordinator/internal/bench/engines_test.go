package bench

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
