package lane_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lose has a worker start a call and lose its connection for good.
func (f *fleet) lose(p *lane.Publisher, call *protocol.Call, o lane.Options) {
	f.t.Helper()
	nc := f.connect()
	started := make(chan struct{}, 1)
	h, err := lane.NewHolder(f.t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		started <- struct{}{}
		<-ctx.Done()
		return interrupted(ctx, run)
	}), o)
	require.NoError(f.t, err)
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	put(f.t, p, call)
	<-started
	nc.Close()
	cancel()
	require.NoError(f.t, <-done)
}

// Law: work resumes within the lease and a second after its worker was seen last, and not before
// the lease is over, by the server's clock. On a busy machine the earliest of some counts.
func TestTakeover_WithinTheLeaseAndASecond(t *testing.T) {
	t.Parallel()
	const lease, tries = 2 * time.Second, 8
	for try := 1; ; try++ {
		passed := takenOverAfter(t, lease)
		t.Logf("taken over %s after the last heartbeat, with a lease of %s", passed, lease)
		require.GreaterOrEqual(t, passed, lease, "taken over while it may have gone on")
		if passed < lease+time.Second || try == tries {
			require.Less(t, passed, lease+time.Second+busyMachine)
			return
		}
	}
}

// takenOverAfter has another worker take a call over from a lost one, and returns how long after
// its last heartbeat that was.
func takenOverAfter(t *testing.T, lease time.Duration) time.Duration {
	t.Helper()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(lease)
	call := newCall("s", exclusive("account/a"))
	f.lose(p, call, lane.Options{Worker: "lost"})
	claims, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(t, err)
	lost, err := claims.GetLastMsgForSubject(t.Context(), wire.HeartbeatSubject(factFleet, protocol.DefaultPool, ">"))
	require.NoError(t, err)
	taken := make(chan time.Time, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		claim, err := claims.GetLastMsgForSubject(ctx, wire.ClaimSubject(factFleet, call.Pool, wire.HashLane(call.Lane())))
		if assert.NoError(t, err) {
			select {
			case taken <- claim.Time:
			default: // on a busy machine this worker may have lost the lane, too
			}
		}
		return succeed(run)
	}), lane.Options{Worker: "next"})
	require.GreaterOrEqual(t, f.await(p, call).Attempt, 2)
	f.requireQuiet()
	return (<-taken).Sub(lost.Time)
}

// busyMachine is what a test allows for a machine with much else to do.
const busyMachine = 10 * time.Second

// Law: who has what only one process can have takes over from its own earlier life at once.
func TestTakeover_FromAnEarlierLifeAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	f.lose(p, call, lane.Options{Worker: "before", AckWait: time.Hour, Origin: "here#1"})
	f.hold(succeeds, lane.Options{Worker: "there", AckWait: time.Hour, Origin: "there#1"})
	f.hold(succeeds, lane.Options{Worker: "after", AckWait: time.Hour, Origin: "here#2"})
	require.Equal(t, 2, f.await(p, call).Attempt)
	f.requireQuiet()
}

// A worker that is lost is reported by one of the others; one that drains is reported by none.
func TestTakeover_ALostWorkerIsReportedOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	const lease = 2 * time.Second
	f.ensurePool(lease)
	call := newCall("s", exclusive("account/a"))
	f.lose(p, call, lane.Options{Worker: "lost"})
	reported := make(chan protocol.WorkerID, 10)
	host := succeeds
	host.onWorkerLost = func(id protocol.WorkerID) { reported <- id }
	drained := f.hold(host, lane.Options{Worker: "drained"})
	f.hold(host, lane.Options{Worker: "first"})
	f.hold(host, lane.Options{Worker: "second"})
	require.GreaterOrEqual(t, f.await(p, call).Attempt, 2)
	require.Equal(t, protocol.WorkerID("lost"), <-reported)
	drained.stop()
	select { // by then its heartbeat would have stood still for long enough
	case id := <-reported:
		require.Fail(t, "reported as lost", string(id))
	case <-time.After(lease + time.Second):
	}
	f.requireQuiet()
}

// Law: a claim of a worker that is alive is not taken over, whoever is given the ready message
// again, and whatever its name is.
func TestTakeover_NotFromAWorkerThatIsAlive(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	begun, end := make(chan struct{}, 9), make(chan struct{})
	work := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		begun <- struct{}{}
		<-end
		return succeed(run)
	})
	f.hold(work, lane.Options{AckWait: briefLease, Worker: "both", Slots: 1})
	call := newCall("s", exclusive("account/a"))
	put(t, p, call)
	<-begun
	seen, acks := f.claims(), f.overhear("$JS.ACK."+wire.CallsStream(factFleet)+".>")
	f.hold(work, lane.Options{AckWait: briefLease, Worker: "both"}) // the first one has no slot, so this is given the lane
	s, err := store.Open(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	ready, err := s.Next(t.Context(), readyOf(call.Lane()), 0)
	require.NoError(t, err)
	require.NoError(t, s.Redeliver(t.Context(), protocol.DefaultPool, ready.Sequence))
	second := "$JS.ACK." + wire.CallsStream(factFleet) + "." + wire.ReadyConsumer(protocol.DefaultPool) + ".2."
	require.Eventually(t, func() bool { // it hands the second delivery back, or has taken the lane
		return len(begun) > 0 || slices.ContainsFunc(acks.all(), func(ack *nats.Msg) bool { return strings.HasPrefix(ack.Subject, second) })
	}, patience, 10*time.Millisecond, "nobody is given the lane again")
	require.Equal(t, seen, f.claims())
	require.Empty(t, begun)
	close(end)
	require.Equal(t, 1, f.await(p, call).Attempt)
	f.requireQuiet()
}

// claims is the claim of each lane, by its subject.
func (f *fleet) claims() map[string]uint64 {
	f.t.Helper()
	found := map[string]uint64{}
	for _, subject := range []string{wire.ClaimSubject(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(protocol.Lane("account/a")))} {
		stream, err := f.js.Stream(f.t.Context(), wire.ClaimsStream(protocol.DefaultFleet))
		require.NoError(f.t, err)
		msg, err := stream.GetLastMsgForSubject(f.t.Context(), subject)
		require.NoError(f.t, err)
		found[subject] = msg.Sequence
	}
	return found
}

// A claim that a killed server brings back, or whose removal was lost, is removed by its owner.
func TestTakeover_AClaimThatNobodyHoldsIsDisowned(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(succeeds, lane.Options{Worker: "w", AckWait: time.Hour})
	first := newCall("s", exclusive("account/a"))
	claims, err := f.nc.SubscribeSync(wire.ClaimSubject(protocol.DefaultFleet, first.Pool, wire.HashLane(first.Lane())))
	require.NoError(t, err)
	put(t, p, first)
	f.await(p, first)
	f.requireQuiet()
	claim, err := claims.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	_, err = f.js.Publish(t.Context(), claim.Subject, claim.Data)
	require.NoError(t, err)
	second := newCall("s", exclusive("account/a"))
	put(t, p, second)
	r := f.await(p, second)
	require.Equal(t, 1, r.Attempt, "nothing was interrupted")
	f.requireQuiet()
}

// withoutHandlers is a host that runs only calls which need no handler.
func withoutHandlers(host testHost) testHost {
	host.canRun = func(n lane.Requirements) bool { return !n.Handler }
	return host
}

func always(protocol.Lane) bool { return true }

// refund is a call that takes a handler.
func refund(t *testing.T, uses ...protocol.Use) *protocol.Call {
	t.Helper()
	payload, err := wire.NewUserPayload("refund", json.RawMessage(`{}`))
	require.NoError(t, err)
	call := newCall("s", uses...)
	call.Payload = payload
	return call
}

// A worker that lacks what a call needs leaves it as it is; whoever has it runs it when it joins,
// as the first attempt, also a call that must not start twice.
func TestOffer_WaitsForWhoeverCanRunIt(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := refund(t, exclusive("account/a"))
	call.Delivery = protocol.AtMostOnce
	offers, err := f.nc.SubscribeSync(wire.AskSubject(factFleet, protocol.DefaultPool, wire.HashLane(call.Lane())))
	require.NoError(t, err)
	require.NoError(t, f.nc.Flush())
	f.hold(withoutHandlers(succeeds), lane.Options{Worker: "plain", Slots: 8})
	put(t, p, call)
	said, err := offers.NextMsg(patience)
	require.NoError(t, err)
	require.JSONEq(t, `{"kind":"refund","handler":true}`, string(said.Data))
	again, err := offers.NextMsg(patience)
	require.NoError(t, err, "it is offered again and again")
	require.Equal(t, said.Data, again.Data)
	r, err := p.Result(t.Context(), "s", call.ID)
	require.NoError(t, err)
	require.Nil(t, r)

	f.hold(succeeds, lane.Options{Worker: "able"})
	got := f.await(p, call)
	require.Equal(t, protocol.StatusOK, got.Status, "%v", got.Error)
	require.Equal(t, protocol.WorkerID("able"), got.WorkerID)
	require.Equal(t, 1, got.Attempt)
	f.requireQuiet()
}

// The others of the lane run in their order, each where it can.
func TestOffer_KeepsTheOrderOfALane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	ran := make(chan protocol.CallID, 9)
	f.hold(withoutHandlers(tells(ran)), lane.Options{Worker: "plain", Slots: 8})
	able := tells(ran)
	able.canRun = func(n lane.Requirements) bool { return n.Handler }
	f.hold(able, lane.Options{Worker: "able"})
	key := exclusive("account/a")
	calls := []*protocol.Call{newCall("s", key), refund(t, key), newCall("s", key), refund(t, key), newCall("s", key)}
	put(t, p, calls...)
	for i, call := range calls {
		got := f.await(p, call)
		require.Equal(t, protocol.StatusOK, got.Status, "%v", got.Error)
		require.Equal(t, []protocol.WorkerID{"plain", "able"}[i%2], got.WorkerID)
		require.Equal(t, 1, got.Attempt)
		require.Equal(t, call.ID, <-ran)
	}
	f.requireQuiet()
}

// A call that nobody can run holds up none that does not conflict with it, and is answered when it
// is cancelled or its time is over.
func TestOffer_HoldsUpNothingElse(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(withoutHandlers(succeeds), lane.Options{})
	cancelled, expired := refund(t, exclusive("account/a/1")), refund(t, exclusive("account/a/2"))
	expired.QueueTimeout = protocol.MillisOf(time.Millisecond)
	put(t, p, cancelled, expired)
	beside := newCall("s", exclusive("account/a/3"))
	put(t, p, beside)
	require.Equal(t, protocol.StatusOK, f.await(p, beside).Status)
	require.Equal(t, protocol.CodeQueueTimeout, f.await(p, expired).Error.Code)
	require.NoError(t, p.Cancel(t.Context(), cancelled))
	require.Equal(t, protocol.StatusCancelled, f.await(p, cancelled).Status)
	f.requireQuiet()
}

// A lane where something lives that must not end with it is not handed back.
func TestOffer_NotOfALaneThatIsKept(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	host := withoutHandlers(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		return wire.NewResult(run.Call, protocol.StatusRejected, protocol.Errorf(codes.UnknownPayload, "no"))
	}))
	host.mustHold = always
	f.hold(host, lane.Options{})
	call := refund(t, exclusive("account/a"))
	put(t, p, call)
	require.Equal(t, codes.UnknownPayload, f.await(p, call).Error.Code)
}

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
