package store

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker that says that its lease is endless keeps others from its lanes for no longer than any.
func TestHeartbeat_LeasesEnd(t *testing.T) {
	t.Parallel()
	for said, want := range map[int64]time.Duration{10_000: 10 * time.Second, 1 << 42: natsio.MaxAckWait, math.MaxInt64: natsio.MaxAckWait} {
		require.Equal(t, want, (&StoredHeartbeat{Heartbeat: protocol.Heartbeat{LeaseMS: said}}).Lease())
	}
}
