package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestRun_EveryEngineKeepsOrder(t *testing.T) {
	t.Parallel()
	for _, engine := range []Engine{Lanes, Partitions, Consumers} {
		t.Run(string(engine), func(t *testing.T) {
			t.Parallel()
			o := options(t)
			o.Engine, o.Partitions, o.Baseline, o.SlowLane = engine, 5, 0, 5*time.Millisecond
			for range 2 { // it leaves nothing behind that would hinder the next
				r, err := Run(t.Context(), o)
				require.NoError(t, err)
				require.Equal(t, engine, r.Engine)
				require.Zero(t, r.Errors)
				require.Zero(t, r.Violations)
				require.Positive(t, r.SlowCalls)
				require.Positive(t, r.CallsPerS)
				require.Positive(t, r.Messages)
			}
		})
	}
}

func TestRun_UnknownEngine(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Options{Engine: "locks", Lanes: 1, Callers: 1, Calls: 1, Workers: 1, Slots: 1})
	require.ErrorContains(t, err, `--engine "locks": must be lanes, partitions or consumers`)
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
	o.Engine = Consumers
	nc, err := o.Connect("test")
	require.NoError(t, err)
	defer nc.Close()
	started, err := startConsumers(t.Context(), nc, o, newWitness(0, 0))
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
