package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// Law: a rate holds for all processes together, also if their clocks differ: the difference counts
// once, and not whenever another process spends.
func TestSpending_ClocksThatDiffer(t *testing.T) {
	t.Parallel()
	const rate, burst, ahead = 100, 1, 300 * time.Millisecond
	server := natsiotest.New(t, natsio.Topology{})
	_, err := limits.Open(t.Context(), server.JS, "tf")
	require.NoError(t, err)
	bucket := limits.Bucket{Rate: rate, Burst: burst}
	late := limits.NewSpending(server.JS, "tf", "acme")
	early := limits.NewSpending(server.JS, "tf", "acme")
	began, taken := time.Now(), 0
	for range 300 {
		for _, process := range []struct {
			spending *limits.Spending
			ahead    time.Duration
		}{{late, 0}, {early, ahead}} {
			wait, err := process.spending.Spend(t.Context(), bucket, 1, func() time.Time { return time.Now().Add(process.ahead) })
			require.NoError(t, err)
			if wait == 0 {
				taken++
			}
		}
	}
	require.LessOrEqual(t, float64(taken), burst+rate*(time.Since(began)+ahead).Seconds())
}
