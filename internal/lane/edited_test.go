package lane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Somebody edits the leases of a pool while its workers run. Of shorter ones the server takes for lost what is held for
// longer, so it is given up; what is taken then is held by the new ones.
func TestEdited_WorkersFollowTheLeasesOfTheirPool(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(time.Minute)
	p, g := f.publisher(), newGate()
	holders := []*holder{f.hold(g, lane.Options{}), f.hold(g, lane.Options{})}
	edit := func(lease time.Duration) {
		c, err := f.js.Consumer(t.Context(), factFleet.CallsStream(), factFleet.ReadyConsumer(pool))
		require.NoError(t, err)
		config := c.CachedInfo().Config
		config.AckWait = lease
		_, err = f.js.UpdateConsumer(t.Context(), factFleet.CallsStream(), config)
		require.NoError(t, err)
		for _, h := range holders {
			require.Eventually(t, func() bool { return h.Lease() == lease }, patience, time.Millisecond)
		}
	}
	call := newCall("s", exclusive("account/x"))
	put(t, p, call)
	first := g.requireStart(t, call.ID)
	require.Equal(t, 1, first.Attempt)
	edit(2 * time.Second)
	require.Equal(t, 2, g.requireStart(t, call.ID).Attempt, "the first one was given up, or it would be held by two")
	edit(time.Minute)
	g.letGo <- struct{}{}
	result := f.await(p, call)
	require.Equal(t, protocol.StatusOK, result.Status, "a longer lease ends none")
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}
