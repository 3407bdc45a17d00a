package lane_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestLane_OneCallGetsItsResult(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(succeeds, lane.Options{Worker: "w-1"})
	call := newCall("s", exclusive("account/acme"))
	put(t, p, call)
	r := f.await(p, call)
	require.Equal(t, protocol.StatusOK, r.Status)
	require.Equal(t, protocol.WorkerID("w-1"), r.WorkerID)
	require.Equal(t, 1, r.Attempt)
	require.Equal(t, wire.NoopResult{}, r.Value)
	f.requireQuiet()
}

func TestLane_ExclusiveCallsRunOneByOneInOrder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var mu sync.Mutex
	var order []protocol.CallID
	var running, overlaps atomic.Int32
	execute := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if running.Add(1) > 1 {
			overlaps.Add(1)
		}
		mu.Lock()
		order = append(order, run.Call.ID)
		mu.Unlock()
		running.Add(-1)
		return succeed(run)
	})
	for range 3 {
		f.hold(execute, lane.Options{Slots: 4})
	}
	var calls []*protocol.Call
	var want []protocol.CallID
	for range 200 {
		call := newCall("s", exclusive("account/acme"))
		calls, want = append(calls, call), append(want, call.ID)
	}
	put(t, p, calls[:100]...)
	put(t, p, calls[100:]...)
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	require.Zero(t, overlaps.Load())
	require.Equal(t, want, order)
	f.requireQuiet()
}

func TestLane_CallsWithoutConflictRunSideBySide(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	const n = 8
	var arrived atomic.Int32
	all := make(chan struct{})
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if arrived.Add(1) == n {
			close(all)
		}
		select {
		case <-all:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Slots: n})
	var calls []*protocol.Call
	for i := range n {
		use := shared("sandbox/x/a")
		if i%2 == 0 {
			use = exclusive(fmt.Sprintf("sandbox/x/b/%d", i))
		}
		call := newCall("s", use)
		call.RunTimeout = protocol.MillisOf(patience)
		calls = append(calls, call)
	}
	put(t, p, calls...)
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status, "all must run at once, or none ends")
	}
	f.requireQuiet()
}

func TestLane_EnqueueingTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p, again := f.publisher(), f.publisher()
	var runs atomic.Int32
	call := newCall("s", exclusive("account/acme"))
	put(t, p, call)
	twice := *call
	twice.Again = true
	put(t, again, &twice)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		runs.Add(1)
		return succeed(run)
	}), lane.Options{})
	f.await(p, call)
	put(t, again, &twice) // long after its end
	f.requireQuiet()
	require.EqualValues(t, 1, runs.Load())
}

func TestLane_RunTimeoutDeadlineAndExpiry(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		<-ctx.Done()
		return interrupted(ctx, run)
	}), lane.Options{Slots: 4})

	slow := newCall("s", exclusive("account/a"))
	slow.RunTimeout = 30
	put(t, p, slow)
	requireFault := func(call *protocol.Call, status protocol.Status, code protocol.Code) {
		t.Helper()
		r := f.await(p, call)
		require.Equal(t, status, r.Status)
		require.Equal(t, code, r.Error.Code)
	}
	requireFault(slow, protocol.StatusTimeout, protocol.CodeRunTimeout)

	// A clock that is minutes off changes nothing: only the difference counts.
	for _, off := range []time.Duration{0, -10 * time.Minute} {
		for life := 2 * time.Second; ; life *= 4 { // a busy machine may not start a call before its deadline
			doomed, behind := newCall("s", exclusive("account/b")), newCall("s", exclusive("account/b"))
			doomed.IssuedAt = time.Now().Add(off)
			doomed.Deadline = doomed.IssuedAt.Add(life)
			behind.QueueTimeout = 20
			put(t, p, doomed, behind)
			requireFault(behind, protocol.StatusRejected, protocol.CodeQueueTimeout)
			if life < patience && f.await(p, doomed).Status == protocol.StatusRejected {
				continue
			}
			requireFault(doomed, protocol.StatusTimeout, protocol.CodeDeadline)
			break
		}
	}
	f.requireQuiet()
}

// Whoever makes calls may pass on a deadline that has passed. However fast the fleet is, such a
// call does not start.
func TestLane_ADeadlineThatHadPassedStartsNothing(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	ran := make(chan protocol.CallID, 100)
	f.hold(tells(ran), lane.Options{})
	for range cap(ran) {
		call := newCall("s", exclusive("account/a"))
		call.Deadline = call.IssuedAt
		put(t, p, call)
		r := f.await(p, call)
		require.Equal(t, protocol.StatusRejected, r.Status)
		require.Equal(t, protocol.CodeDeadline, r.Error.Code)
	}
	require.Empty(t, ran)
	f.requireQuiet()
}

func TestLane_CancelEndsWaitingAndRunningCalls(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	started := make(chan protocol.CallID, 4)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		started <- run.Call.ID
		<-ctx.Done()
		return interrupted(ctx, run)
	}), lane.Options{Slots: 2})
	running, waiting := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, running, waiting)
	require.Equal(t, running.ID, <-started)
	require.NoError(t, p.Cancel(t.Context(), waiting))
	require.NoError(t, p.Cancel(t.Context(), running))
	require.NoError(t, p.Cancel(t.Context(), running), "cancelling twice is fine")
	for _, call := range []*protocol.Call{running, waiting} {
		r := f.await(p, call)
		require.Equal(t, protocol.StatusCancelled, r.Status)
	}
	require.Empty(t, started, "a call cancelled while it waited must not start")
	require.NoError(t, p.Cancel(t.Context(), running), "after the end it does nothing")
	f.requireQuiet()
}

func TestLane_CancelWithoutWorkerIsDurable(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	put(t, p, call)
	require.NoError(t, p.Cancel(t.Context(), call))
	f.hold(succeeds, lane.Options{})
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	f.requireQuiet()
}

func TestLane_LingeringLaneTakesNewCalls(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	h := f.hold(succeeds,
		lane.Options{Linger: time.Minute})
	for range 20 {
		call := newCall("s", exclusive("account/a"))
		put(t, p, call)
		f.await(p, call)
	}
	require.Equal(t, 1, h.Held())
	h.stop()
	f.requireQuiet()
}

func TestLane_LostWorkerIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	for _, delivery := range []protocol.Delivery{protocol.Idempotent, protocol.AtMostOnce} {
		t.Run(string(delivery), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			started := make(chan struct{})
			release := make(chan struct{})
			nc := f.connect()
			var atLost, atNext told
			lost, err := lane.NewHolder(t.Context(), nc, atLost.by(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				close(started)
				<-release
				return succeed(run)
			})), lane.Options{Worker: "lost", AckWait: briefLease})
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- lost.Run(ctx, ctx) }()

			first, second := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
			first.Delivery, second.Delivery = delivery, delivery
			put(t, p, first, second)
			<-started
			nc.Close() // the worker is cut off: it must commit nothing from now on
			next := f.hold(atNext.by(succeeds), lane.Options{Worker: "next"})
			r := f.await(p, first)
			if delivery == protocol.AtMostOnce {
				require.Equal(t, protocol.StatusOutcomeUnknown, r.Status)
			} else {
				require.Equal(t, protocol.StatusOK, r.Status)
				require.Equal(t, 2, r.Attempt)
			}
			require.Equal(t, protocol.WorkerID("next"), r.WorkerID)
			r = f.await(p, second)
			require.Equal(t, protocol.StatusOK, r.Status)
			require.Equal(t, 1, r.Attempt, "it waited behind the first, so it was never started")
			require.Equal(t, protocol.WorkerID("lost"), r.Waits.LostWorker)
			require.Greater(t, r.Waits.LostMS, r.Waits.SlotMS, "%+v", r.Waits)
			lanes, used, slots := lost.Load()
			require.Equal(t, []int{1, 1, 1}, []int{lanes, used, slots}, "what was lost runs until it returns")
			close(release)
			cancel()
			require.NoError(t, <-done)
			f.requireQuiet()
			next.stop()
			require.Empty(t, atLost.settled)
			require.Equal(t, []protocol.Lane{"account/a"}, atLost.lost)
			require.Equal(t, []protocol.CallID{first.ID, second.ID}, atNext.settled)
			require.Empty(t, atNext.lost)
			lanes, used, slots = next.Load()
			require.Equal(t, []int{0, 0, 1}, []int{lanes, used, slots})
		})
	}
}

// told is what a holder tells its owner. It may be read when the holder has ended.
type told struct {
	mu      sync.Mutex
	settled []protocol.CallID
	lost    []protocol.Lane
}

// by adds to a host that it notifies w.
func (w *told) by(host testHost) testHost {
	host.onSettled = func(c *protocol.Call, r *protocol.Result) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if r.CallID == c.ID {
			w.settled = append(w.settled, c.ID)
		}
	}
	host.onLost = func(l protocol.Lane) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lost = append(w.lost, l)
	}
	return host
}

func TestLane_PoisonCallIsGivenUp(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	poison, healthy := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	poison.MaxAttempts = 3
	put(t, p, poison, healthy)
	for i := range 3 { // workers that die at the call
		nc := f.connect()
		started := make(chan struct{}, 1)
		h, err := lane.NewHolder(t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
			started <- struct{}{}
			<-ctx.Done()
			return interrupted(ctx, run)
		}), lane.Options{AckWait: briefLease})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- h.Run(ctx, ctx) }()
		select {
		case <-started:
		case <-time.After(patience):
			t.Fatalf("attempt %d did not start", i+1)
		}
		nc.Close()
		cancel()
		require.NoError(t, <-done)
	}
	f.hold(succeeds, lane.Options{})
	r := f.await(p, poison)
	require.Equal(t, protocol.StatusFailed, r.Status)
	require.Equal(t, protocol.CodeAttemptsExhausted, r.Error.Code)
	require.Equal(t, 3, r.Attempt)
	require.Equal(t, protocol.StatusOK, f.await(p, healthy).Status)
	f.requireQuiet()
}

// Headers carry the names of lanes, and NATS takes spaces away from their ends and lines apart.
func TestLane_MayHaveAnyName(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	o, err := operator.New(t.Context(), f.nc, protocol.DefaultFleet)
	require.NoError(t, err)
	names := []string{
		" ", "a ", " a", "  a  ", "\t", "a\t", "\n", "a\r\nTf-Call: x", "*", ">", "a.b", "a*", "ünï cödé", "日本", "\u2028", "\u00a0", "\x7f", "\x01",
		`"`, `\`, `\u0020`, "%", "<a&b>", "🦆", "\ufeff", "\ufffd", strings.Repeat("\x01", 1000),
	}
	var calls []*protocol.Call
	for _, name := range names {
		key, err := protocol.ParseResourceKey("account/" + name)
		require.NoError(t, err, "%q", name)
		for range 2 { // the first is the ready message, the second waits in the mailbox
			call := newCall("s", exclusive(string(key)))
			put(t, p, call)
			calls = append(calls, call)
		}
		_, err = o.Pause(t.Context(), protocol.DefaultPool, key.Lane())
		require.NoError(t, err)
	}
	list, err := o.List(t.Context(), protocol.DefaultPool, 0)
	require.NoError(t, err)
	require.Len(t, list.Lanes, len(names))
	for i, status := range list.Lanes {
		require.Equal(t, "account/"+names[i], string(status.Lane), "the oldest first")
		_, err := o.Resume(t.Context(), protocol.DefaultPool, status.Lane)
		require.NoError(t, err)
	}
	f.hold(succeeds, lane.Options{Slots: 4})
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status, "%q", call.Lane())
	}
	f.requireQuiet()
}

// Who may publish in one pool must not have its workers run what is meant for another one.
func TestLane_ACallOfAnotherPoolIsNotRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	call := newCall("s", exclusive("account/x"))
	call.Pool = "other"
	msg := messageOf(t, wire.ReadySubject(protocol.DefaultFleet, protocol.DefaultPool, wire.HashLane(call.Lane())), call)
	require.NoError(t, f.nc.PublishMsg(msg))
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		t.Errorf("call of pool %s runs", run.Call.Pool)
		return succeed(run)
	}), lane.Options{})
	result := f.await(f.publisher(), call)
	require.Equal(t, protocol.StatusRejected, result.Status)
	require.Contains(t, result.Error.Message, "in pool other")
}
