package calls

import (
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
	require.Equal(t, lost, d.judge(t.Context(), &protocol.Call{}, lost, &owner))
	owner.Beat = 4
	require.Equal(t, attempt{number: 1, worker: "w1"}, d.judge(t.Context(), &protocol.Call{}, lost, &owner))
}

// A result can arrive before the server has acknowledged the call. Then nothing ends the future a
// second time, also when the client is closed meanwhile.
func TestFuture_EndsOnceWhenItsResultIsFirst(t *testing.T) {
	t.Parallel()
	r := natsiotest.New(t, natsio.Topology{})
	d, err := New(t.Context(), r.NC, r.Name, nil)
	require.NoError(t, err)
	call := &protocol.Call{
		ID: "c", SessionID: "s", Tool: "noop", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: "sandbox/s", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.Noop{},
	}
	f := &Future{Call: call, futures: d.futures, ctx: t.Context(), done: make(chan struct{}), stop: func() bool { return true }}
	f.followed = d.begin(t.Context(), call)
	listening := make(chan struct{})
	d.futures.mu.Lock()
	d.futures.add(f)
	open := d.futures.sessions["s"].open
	d.futures.sessions["s"].open = func() (*Watch, error) {
		<-listening // so that it is not sent yet
		return open()
	}
	d.futures.mu.Unlock()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		d.futures.mu.Lock()
		defer d.futures.mu.Unlock()
		d.futures.sendCall(f)
	}()
	require.Eventually(t, func() bool {
		d.futures.mu.Lock()
		defer d.futures.mu.Unlock()
		return f.state == futureSending
	}, time.Minute, time.Millisecond)
	result := wire.NewResult(call, protocol.StatusOK, nil)
	d.futures.onResult(&result)
	d.futures.mu.Lock()
	d.futures.closed = true
	d.futures.mu.Unlock()
	close(listening)
	<-sent
	got, err := f.Result()
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, got.Status)
}

// Calls of one lane that wait for each other by After wait for none that began later.
func TestWaitTurn_NoTwoCallsWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := natsiotest.New(t, natsio.Topology{})
	d, err := New(t.Context(), r.NC, r.Name, nil)
	require.NoError(t, err)
	defer d.Close()
	first := &protocol.Call{
		ID: "first", SessionID: "s", Tool: "noop", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: "sandbox/s", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.Noop{},
	}
	sent, unmet, err := d.futures.sendAfter(t.Context(), first)
	require.NoError(t, err)
	require.Nil(t, unmet)
	second := *first
	second.ID, second.After = "second", []protocol.CallRef{refOf(first)}
	f := d.Go(t.Context(), &second) // it is not sent before the first
	require.NoError(t, d.futures.waitTurn(t.Context(), first, time.Now()))
	require.False(t, f.accepted)
	sent(false)
	third := second
	third.ID, third.After = "third", nil
	require.NoError(t, d.Submit(t.Context(), &third))
	d.futures.mu.Lock()
	defer d.futures.mu.Unlock()
	require.True(t, f.accepted)
}
