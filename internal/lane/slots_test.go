package lane_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newCalls makes calls that all need the same.
func newCalls(n int, use protocol.Use) []*protocol.Call {
	calls := make([]*protocol.Call, n)
	for i := range calls {
		calls[i] = newCall("s", use)
	}
	return calls
}

// makesWay waits until a lane that always has work lets another one have its slot.
func makesWay(t *testing.T, f *fleet, p *lane.Publisher, busy, other protocol.Lane) {
	t.Helper()
	const ahead = 20 // calls, so that the lane is never idle
	calls := newCalls(ahead, exclusive(string(busy)))
	put(t, p, calls...)
	waits := newCall("s", exclusive(string(other)))
	put(t, p, waits)
	for limit := time.Now().Add(patience); ; {
		result, err := p.Result(t.Context(), waits.SessionID, waits.ID)
		if err == nil && result != nil {
			break
		}
		require.True(t, time.Now().Before(limit), "the other lane gets no slot")
		next := newCall("s", exclusive(string(busy)))
		put(t, p, next)
		calls = append(calls, next)
		f.await(p, calls[len(calls)-ahead])
	}
	f.await(p, calls[len(calls)-1])
}

// A lane that always has work has the only slot. It keeps it while no other lane waits, and makes
// way for one that does.
func TestLane_BusyLaneMakesWayOnlyForOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var longest atomic.Int64 // for which the lane was held before a call
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.Lane() == "account/busy" {
			longest.Store(max(longest.Load(), int64(run.InLane)))
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return succeed(run)
	}), lane.Options{Slots: 1})
	calls := newCalls(100, exclusive("account/busy"))
	put(t, p, calls...)
	f.await(p, calls[len(calls)-1])
	require.Greater(t, time.Duration(longest.Load()), 1500*time.Millisecond, "it was given up, and nobody waited")
	makesWay(t, f, p, "account/busy", "account/other")
	f.requireQuiet()
}

// What waits in a lane when it is claimed is asked for together, and run in its order.
func TestLane_WhatWaitsIsReadTogether(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	calls := newCalls(100, exclusive("account/a"))
	put(t, p, calls...)
	var questions atomic.Int32 // that leave it to the server what comes next
	filter := wire.MailboxFilter(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(calls[0].Lane()))
	heard, err := f.nc.Subscribe("$JS.API.>", func(msg *nats.Msg) {
		if bytes.Contains(msg.Data, []byte(filter)) {
			questions.Add(1)
		}
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, heard.Unsubscribe()) }()
	require.NoError(t, f.nc.Flush())
	ran := make(chan protocol.CallID, len(calls))
	f.hold(tells(ran), lane.Options{})
	for _, call := range calls {
		require.Equal(t, call.ID, <-ran)
	}
	require.Less(t, int(questions.Load()), len(calls)/4)
}

// A lane that is held costs nothing: its worker's one heartbeat is renewed for all of them, so four
// hundred lanes take fewer than a hundred messages a second, and fewer than twenty on a machine
// that does little else.
func TestLane_ManyHeldLanesCostLittle(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	nc := f.connect()
	const lanes, lease, most = 400, natsio.DefaultAckWait, 100.0 // one for each lane in a fifth of a lease is 200 a second
	var started atomic.Int32
	release := make(chan struct{})
	h, err := lane.NewHolder(t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		started.Add(1)
		select {
		case <-release:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Worker: "w", Slots: lanes, Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()

	var calls []*protocol.Call
	for i := range lanes {
		calls = append(calls, newCall("s", exclusive(fmt.Sprintf("account/%d", i))))
	}
	put(t, p, calls...)
	require.Eventually(t, func() bool { return started.Load() == lanes }, patience, 5*time.Millisecond)
	stepAside(t, lease/2) // what a claim costs is over
	least := math.Inf(1)
	for range 6 {
		before, begun := nc.Stats(), time.Now()
		stepAside(t, lease/2)
		after := nc.Stats()
		messages := after.InMsgs + after.OutMsgs - before.InMsgs - before.OutMsgs
		if least = min(least, float64(messages)/time.Since(begun).Seconds()); least < most {
			break // what else a busy machine makes of it does not come every time
		}
	}
	require.EqualValues(t, lanes, started.Load(), "all of them are held all the time")
	t.Logf("%.1f messages a second", least)
	require.Less(t, least, most)
	require.Greater(t, least, 0.2, "renewed")
	close(release)
	for _, call := range calls {
		f.await(p, call)
	}
	stop()
	require.NoError(t, <-done)
}
