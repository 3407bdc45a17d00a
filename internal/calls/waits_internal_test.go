package calls

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
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

// A lost worker is there again when it renews its heartbeat, and not because the server's clock was
// measured again, which makes a heartbeat younger.
func TestJudge_OnlyARenewalBringsAWorkerBack(t *testing.T) {
	t.Parallel()
	lost := attempt{number: 1, worker: "w1", late: 3, lost: "worker w1 is lost"}
	owner := lane.Owner{Worker: "w1", Beat: 3, Silent: time.Second, Left: 5 * time.Second}
	require.False(t, owner.Late())
	var d Dispatcher
	require.Equal(t, lost, d.assess(t.Context(), &protocol.Call{}, lost, &owner))
	owner.Beat = 4
	require.Equal(t, attempt{number: 1, worker: "w1"}, d.assess(t.Context(), &protocol.Call{}, lost, &owner))
}

// A result can arrive before the server has acknowledged the call. Then nothing ends the handle a
// second time, also when the client is closed meanwhile.
func TestHandle_EndsOnceWhenItsResultIsFirst(t *testing.T) {
	t.Parallel()
	r := natsiotest.New(t, natsio.Topology{})
	d, err := New(t.Context(), r.NC, r.Name, nil)
	require.NoError(t, err)
	call := &protocol.Call{
		ID: "c", SessionID: "s", Tool: "noop", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: "sandbox/s", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.Noop{},
	}
	h := d.begin(t.Context(), call)
	h.group = &group{ctx: t.Context(), handles: []*Handle{h}, open: 1}
	listening := make(chan struct{})
	h.group.copyResult = func(context.Context, *protocol.Call) error { // so that it is not sent yet
		<-listening
		return nil
	}
	d.table.mu.Lock()
	d.table.open[h] = true
	d.table.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		d.table.mu.Lock()
		defer d.table.mu.Unlock()
		d.table.sendCall(h, false)
	}()
	require.Eventually(t, func() bool {
		d.table.mu.Lock()
		defer d.table.mu.Unlock()
		return h.state == handleSending
	}, time.Minute, time.Millisecond)
	result := wire.NewResult(call, protocol.StatusOK, nil)
	h.onResult(&result)
	d.table.mu.Lock()
	d.table.closed = true
	d.table.mu.Unlock()
	close(listening)
	<-sent
	got, err := h.Result()
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, got.Status)
}
