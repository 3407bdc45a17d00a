//go:build linux

package chaos

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A worker that is killed while it holds a thousand lanes: another one gets them all when their
// leases have ended. The short form has 150.
func TestChaos_AThousandLanesComeBack(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	const lease = natsio.DefaultAckWait
	lanes := 150
	if *callCount > 0 {
		lanes = 1000
	}
	r := newPlace(t, setup{slots: lanes, lease: lease})
	r.startWorker()
	p, err := lane.NewPublisher(t.Context(), r.nc, protocol.DefaultFleet)
	require.NoError(t, err)
	outgoing := make([]lane.Outgoing, lanes)
	for i := range outgoing {
		whole := protocol.Use{Key: protocol.ResourceKey(fmt.Sprintf("account/%d", i)), Access: protocol.Exclusive}
		outgoing[i].Call = &protocol.Call{
			ID: wire.RandomCallID(), SessionID: "s", Pool: protocol.DefaultPool, Delivery: protocol.Idempotent, IssuedAt: time.Now(),
			Resources: []protocol.Use{whole}, Payload: wire.Noop{WorkMS: protocol.MillisOf(time.Hour)}, RunTimeout: protocol.MillisOf(time.Hour),
		}
	}
	for _, err := range p.Enqueue(t.Context(), outgoing) {
		require.NoError(t, err)
	}
	r.awaitStarts(0, lanes)
	pause.For(t.Context(), lease) // every lease is renewed at least once
	r.startWorker()
	pause.For(t.Context(), 300*time.Millisecond)
	_, executions := r.starts(1)
	require.Zero(t, executions, "no lane is given away while it is held")
	killed := time.Now()
	r.workers[0].kill()
	r.awaitStarts(1, lanes)
	t.Logf("%d lanes, leases of %s: after kill -9 all are served again within %s", lanes, lease, time.Since(killed).Round(time.Millisecond))
	if _, executions = r.starts(1); !r.lostLease(r.workers[1].id) {
		require.Equal(t, lanes, executions)
	}
	r.workers[1].kill()
}

// starts is how many calls a worker has begun, and how often in all.
func (r *rig) starts(worker int) (calls, executions int) {
	log, err := os.ReadFile(r.path(string(r.workers[worker].id) + ".log"))
	if os.IsNotExist(err) {
		return 0, 0
	}
	require.NoError(r.t, err)
	begun := map[protocol.CallID]struct{}{}
	for line := range bytes.Lines(log) {
		var record Record
		if json.Unmarshal(line, &record) == nil && record.Kind == KindStart { // the last one may be half written
			begun[record.CallID] = struct{}{}
			executions++
		}
	}
	return len(begun), executions
}

func (r *rig) awaitStarts(worker, n int) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { calls, _ := r.starts(worker); return calls >= n }, patience, 100*time.Millisecond, "not all lanes are served")
}
