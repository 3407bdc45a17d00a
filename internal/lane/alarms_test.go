package lane

import (
	"math"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Older marks are forgotten when there are many; then lanes that were ready before are not quiet.
func TestAlarms_AreBounded(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), natsiotest.New(t, natsio.Topology{}).NC, protocol.DefaultFleet)
	require.NoError(t, err)
	a := newAlarms(s, protocol.DefaultPool)
	require.False(t, a.quiet("lane", math.MaxUint64), "before it listens")
	require.NoError(t, a.tend(t.Context()))
	t.Cleanup(a.close)
	require.True(t, a.quiet("lane", 1))
	mark := func(lane protocol.LaneHash, seq int) {
		msg := nats.NewMsg("told")
		msg.Header.Set("Nats-Sequence", strconv.Itoa(seq))
		msg.Header.Set("Nats-Subject", protocol.DefaultFleet.CancelSubject(protocol.DefaultPool, lane, "c"))
		a.heard <- msg
	}
	mark("lane", 2)
	require.False(t, a.quiet("lane", 1), "marked since")
	require.True(t, a.quiet("lane", 3), "ready again after the mark")
	require.True(t, a.quiet("other", 1))
	for i := range maxAlarms {
		mark(protocol.LaneHash(strconv.Itoa(i)), 10+i)
		require.True(t, a.quiet("lane", 10_000_000))
	}
	require.Less(t, len(a.lanes), maxAlarms)
	require.False(t, a.quiet("lane", 1), "forgotten, and therefore not known")
	require.False(t, a.quiet("other", 1))
	require.True(t, a.quiet("other", 10_000_000))
}
