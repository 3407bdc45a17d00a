package lane_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call that a lost worker may have started has its next start counted by a mark. A stream without room for the mark has to
// empty all the same: a call that waited for room would keep the slot that makes it.
func TestFull_ALaneWhoseWorkerWasLostMovesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(2 * time.Second)
	call := newCall("s", exclusive("account/1"))
	raw(t, f, protocol.DefaultFleet.ReadySubject(call.Pool, call.Lane().Hash()), call)
	f.takeAndDie()
	f.fill(1)
	f.hold(newHistory(), lane.Options{})
	result := f.await(f.publisher(), call)
	require.Equal(t, protocol.StatusOK, result.Status)
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}
