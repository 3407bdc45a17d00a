//go:build linux

package chaos

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// idleMargin is how much longer than a lease a lane may stand idle although calls wait in it, of
// which nobody who lives knows: a worker that was killed right after it was told of them keeps them
// from the others for 5 s, and these look once a second.
const idleMargin = 9 * time.Second

// Nobody puts again what callers had put when they were killed, and nobody waits for it.
func TestChaos_CallersNeverComeBack(t *testing.T) { //nolint:paralleltest // see side
	side(t)
	s := setup{faults: 6, pause: time.Second, slots: 32, orphans: true}
	report := run(t, s, abandonCaller, abandonCaller, killWorker)
	bound := leaseOf(&s) + idleMargin
	t.Logf("lane %s stood idle for %s while calls waited, the longest time of all; the bound is %s",
		report.IdleLane, report.Idle.Round(time.Millisecond), bound)
	require.LessOrEqual(t, report.Idle, bound+report.Stalled)
}

// abandonCaller is kill -9 of the callers in the middle of what they do, for good; others come,
// with calls and lanes of their own.
func abandonCaller(r *rig) {
	require.Eventually(r.t, func() bool { return r.caller.ended() || r.callerLog() > 0 }, patience, 10*time.Millisecond)
	pause.For(r.t.Context(), time.Duration(r.random.Int64N(int64(r.setup.pause))))
	enough := *callCount > 0 && r.orphans >= *callCount || *limit > 0 && time.Since(r.since) > *limit
	if r.caller.ended() || enough { // let those that are there come to their end
		return
	}
	r.caller.kill()
	log, err := os.ReadFile(r.callerPath())
	require.NoError(r.t, err)
	r.orphans += bytes.Count(log, []byte(`"kind":"put"`))
	r.orphaned++
	r.startCaller()
	r.counts["kill caller for good"]++
}

// watchCalls notes when the stream took each call, for callers that do not live to write it down.
// It does not see a call that is removed at once.
func (r *rig) watchCalls() {
	r.t.Helper()
	fleet := protocol.DefaultFleet
	r.entered = map[protocol.CallID]Time{}
	consumer, err := r.js.OrderedConsumer(r.t.Context(), wire.CallsStream(fleet), jetstream.OrderedConsumerConfig{HeadersOnly: true})
	require.NoError(r.t, err)
	watching, err := consumer.Consume(func(msg jetstream.Msg) {
		id := protocol.CallID(msg.Headers().Get(wire.HeaderCall))
		meta, err := msg.Metadata()
		if id == "" || err != nil { // marks name no call
			return
		}
		if at := Time(meta.Timestamp.UnixNano() - int64(r.offset)); r.entered[id] == 0 || at < r.entered[id] {
			r.entered[id] = at
		}
	})
	require.NoError(r.t, err)
	r.stopWatching = func() {
		watching.Stop()
		<-watching.Closed()
	}
	r.t.Cleanup(r.stopWatching)
}

// addEntered adds to a history what watchCalls saw.
func (r *rig) addEntered(h *History) {
	if r.stopWatching == nil {
		return
	}
	r.stopWatching()
	for id, at := range r.entered {
		require.NotNil(r.t, h.Calls[id], "call %s is in the stream, and nobody has put it", id)
		h.Calls[id].Entered = at
	}
}
