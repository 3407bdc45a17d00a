package lane_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func pause(t *testing.T, o *operator.Operator, name protocol.Lane) {
	t.Helper()
	require.Eventually(t, func() bool { // a holder that is very busy may not confirm it in time
		confirmed, err := o.Pause(t.Context(), pool, name)
		return err == nil && confirmed
	}, patience, time.Millisecond)
}

func resume(t *testing.T, o *operator.Operator, name protocol.Lane) {
	t.Helper()
	was, err := o.Resume(t.Context(), pool, name)
	require.NoError(t, err)
	require.True(t, was)
}

func TestPause_WhatRunsGoesOnAndNothingStarts(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	f.hold(g, lane.Options{Worker: "w-1", Slots: 2})
	running, next, doomed := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, running, next)
	g.requireStart(t, running.ID)
	pause(t, o, "account/a")
	pause(t, o, "account/a") // twice is fine
	put(t, p, doomed)
	g.letGo <- struct{}{}
	require.Equal(t, protocol.StatusOK, f.await(p, running).Status)

	require.NoError(t, p.Cancel(t.Context(), doomed))
	require.Equal(t, protocol.StatusCancelled, f.await(p, doomed).Status, "cancels work, also behind a call that waits")
	require.Empty(t, g.started)
	view := f.shown(o, "account/a", func(v *operator.View) bool { return v.Holder != "" && v.Waiting == 1 })
	require.Equal(t, operator.StatePaused, view.State)
	require.Equal(t, protocol.WorkerID("w-1"), view.Holder)
	require.Empty(t, view.Running)

	other := newCall("s", exclusive("account/b"))
	put(t, p, other)
	g.requireStart(t, other.ID) // other lanes go on
	g.letGo <- struct{}{}
	resume(t, o, "account/a")
	g.requireStart(t, next.ID)
	g.letGo <- struct{}{}
	require.Equal(t, 1, f.await(p, next).Attempt)
	f.requireQuiet()
	was, err := o.Resume(t.Context(), pool, "account/a")
	require.NoError(t, err)
	require.False(t, was)
}

func TestPause_BeforeAnyCallAndWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	pause(t, o, "account/a")
	inline, expiring := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	expiring.QueueTimeout = 50
	put(t, p, inline, expiring)
	h := f.hold(g, lane.Options{Slots: 1})
	r := f.await(p, expiring)
	require.Equal(t, protocol.StatusRejected, r.Status, "time passes in a paused lane")
	require.Equal(t, protocol.CodeQueueTimeout, r.Error.Code)
	require.Equal(t, 1, h.Held(), "a paused lane with calls is kept")
	other := newCall("s", exclusive("account/b"))
	put(t, p, other)
	g.requireStart(t, other.ID) // the only slot is free
	g.letGo <- struct{}{}
	f.await(p, other)
	resume(t, o, "account/a")
	g.requireStart(t, inline.ID)
	g.letGo <- struct{}{}
	require.Equal(t, protocol.StatusOK, f.await(p, inline).Status)
	f.requireQuiet()
}

func TestPause_OutlivesItsHolder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	inline, appended := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/b"))
	pause(t, o, "account/a")
	pause(t, o, "account/b")
	put(t, p, inline)
	f.enqueueWithoutReady(appended)
	_, err := o.Wake(t.Context(), pool, "account/b")
	require.NoError(t, err)
	for _, worker := range []protocol.WorkerID{"w-1", "w-2", "w-3"} {
		h := f.hold(g, lane.Options{Worker: worker, Slots: 2})
		require.Eventually(t, func() bool {
			byName, _ := f.list(o)
			return byName["account/a"].Holder == worker && byName["account/b"].Holder == worker
		}, patience, 10*time.Millisecond)
		h.stop() // drains; the next one takes both over
	}
	require.Empty(t, g.started)
	resume(t, o, "account/a")
	resume(t, o, "account/b")
	f.hold(g, lane.Options{Slots: 2})
	<-g.started
	<-g.started
	g.letGo <- struct{}{}
	g.letGo <- struct{}{}
	require.Equal(t, 1, f.await(p, inline).Attempt, "a lane that was handed back was not attempted")
	require.Equal(t, 1, f.await(p, appended).Attempt)
	f.requireQuiet()
}

func TestPause_OfAnEmptyLaneKeepsNobodyBusy(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	h := f.hold(g, lane.Options{})
	pause(t, o, "account/a")
	first := newCall("s", exclusive("account/a"))
	put(t, p, first)
	require.NoError(t, o.Skip(t.Context(), pool, "account/a", first.ID))
	require.Equal(t, protocol.StatusCancelled, f.await(p, first).Status)
	require.Eventually(t, func() bool { return h.Held() == 0 && f.has(1) }, patience, 5*time.Millisecond,
		"only the mark stays, and nobody holds the lane")
	byName, _ := f.list(o)
	require.Equal(t, operator.StatePaused, byName["account/a"].State)
	c, err := f.js.Consumer(t.Context(), wire.CallsStream(protocol.DefaultFleet), wire.ReadyConsumer(pool))
	require.NoError(t, err)
	require.Less(t, c.CachedInfo().Delivered.Consumer, uint64(10), "the mark alone makes no lane ready")
	require.Empty(t, g.started)
	resume(t, o, "account/a")
	f.requireQuiet()
}

func TestPause_BehindMoreCallsThanFitIntoTheWindow(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	calls := make([]*protocol.Call, 300)
	for i := range calls {
		calls[i] = newCall("s", exclusive("account/a"))
	}
	put(t, p, calls...)
	pause(t, o, "account/a")
	f.hold(g, lane.Options{})
	require.Eventually(t, func() bool {
		byName, _ := f.list(o)
		return byName["account/a"].Holder != ""
	}, patience, 10*time.Millisecond)
	require.NoError(t, o.Skip(t.Context(), pool, "account/a", calls[0].ID))
	require.Equal(t, protocol.StatusCancelled, f.await(p, calls[0]).Status)
	require.Empty(t, g.started)
	resume(t, o, "account/a")
	for _, call := range calls[1:] {
		g.requireStart(t, call.ID)
		g.letGo <- struct{}{}
	}
	f.requireQuiet()
}

func TestPause_ResumeMakesTheLaneReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p, g := f.operator(), f.publisher(), newGate()
	f.hold(g, lane.Options{})
	pause(t, o, "account/a")
	call := newCall("s", exclusive("account/a"))
	f.enqueueWithoutReady(call) // its publisher has died before it could make the lane ready
	resume(t, o, "account/a")
	g.requireStart(t, call.ID)
	g.letGo <- struct{}{}
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	f.requireQuiet()
}

// A lane that waits for long has no goroutine, whose stack would be most of what it takes. It is
// woken by a resume, a cancel, a deadline, a further call and the drain.
func TestPause_LanesThatWaitHaveNoGoroutine(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	o, p := f.operator(), f.publisher()
	const lanes = 20
	var calls []*protocol.Call
	for i := range lanes {
		l := protocol.Lane(fmt.Sprintf("account/%d", i))
		pause(t, o, l)
		calls = append(calls, newCall("s", exclusive(string(l))))
	}
	due := calls[2]
	put(t, p, slices.Concat(calls[:2], calls[3:])...)
	h := f.hold(succeeds, lane.Options{Slots: 2})
	parked := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return h.Held() == n && h.Parked() == n }, patience, 5*time.Millisecond)
	}
	parked(lanes - 1)
	due.Deadline = time.Now().Add(3 * time.Second) // of which it waits the most, unless the machine is busy
	put(t, p, due)
	require.Equal(t, protocol.CodeDeadline, f.await(p, due).Error.Code)
	parked(lanes - 1)
	resume(t, o, "account/0")
	require.Equal(t, protocol.StatusOK, f.await(p, calls[0]).Status)
	require.NoError(t, p.Cancel(t.Context(), calls[1]))
	require.Equal(t, protocol.StatusCancelled, f.await(p, calls[1]).Status)
	parked(lanes - 3)
	further := newCall("s", exclusive("account/3"))
	put(t, p, further)
	resume(t, o, "account/3")
	require.Equal(t, protocol.StatusOK, f.await(p, calls[3]).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, further).Status)
	parked(lanes - 4)
	h.stop()
	require.Zero(t, h.Held())
}
