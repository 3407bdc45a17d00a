package dispatch

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A span says for how long its call waited, for each reason that a result has.
func TestWaited_HasEveryReason(t *testing.T) {
	t.Parallel()
	got := map[string]float64{}
	for _, a := range waited(&protocol.Waits{NotBeforeMS: 1, SlotMS: 2, LaneMS: 3, AfterMS: 4, LimitMS: 5, RateMS: 6, PauseMS: 7}) {
		got[string(a.Key)] = a.Value.AsFloat64()
	}
	const w = "toolfleet.wait."
	require.Equal(t, map[string]float64{
		w + "not_before_ms": 1, w + "slot_ms": 2, w + "lane_ms": 3, w + "after_ms": 4, w + "limit_ms": 5, w + "rate_ms": 6, w + "pause_ms": 7,
	}, got)
	require.Empty(t, waited(&protocol.Waits{}))
}
