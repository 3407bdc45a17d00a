package lane_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// workerVariable makes a process of this test binary a worker: its server and its credentials.
	workerVariable = "LANE_TEST_WORKER"
	// releasing is asked by that worker before it lets a lane go; it waits for the answer.
	releasing = "test.releasing"
)

// beWorker is the main function of that process. It ends when it is killed, or with the tests,
// which hold its input open.
func beWorker(settings string) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	address, creds, _ := strings.Cut(settings, " ")
	ctx := context.Background()
	nc, err := natsio.Connect(ctx, address, natsio.ConnectOptions{Name: "worker", Creds: creds})
	if err != nil {
		return err
	}
	h, err := lane.NewHolder(ctx, nc, witness{
		run:     func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) },
		release: func(protocol.Lane) { _, err = nc.Request(releasing, nil, patience) },
	}, lane.Options{Worker: "killed"})
	if err == nil {
		err = h.Run(ctx, ctx)
	}
	return err
}

// newWorker starts a worker as a process of its own. It reports when that has ended.
func newWorker(t *testing.T, address, creds string) (*os.Process, <-chan struct{}) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), self)
	cmd.Env = append(os.Environ(), workerVariable+"="+address+" "+creds)
	_, err = cmd.StdinPipe()
	require.NoError(t, err)
	var said bytes.Buffer
	cmd.Stderr = &said
	require.NoError(t, cmd.Start())
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is killed
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("worker: %s", said.Bytes())
		}
	})
	return cmd.Process, ended
}

// A worker is killed between its last look into a mailbox, which finds a call, and what follows: it
// neither makes the lane ready nor removes its claim. The caretakers have looked after the call
// while the old ready message was there, and do not come again. The lane is served all the same,
// because the claim is there.
func TestRelease_AWorkerKilledAfterItsLastLookLeavesNoEntry(t *testing.T) {
	t.Parallel()
	nf := natsiotest.Listening(t, natsio.Topology{})
	f := around(t, nf)
	f.ensurePool(4 * briefLease) // a busy machine does not end it while the other worker looks after the call
	server, err := url.Parse(nf.Server.URL())
	require.NoError(t, err)
	cable := natsiotest.NewCable(t, server.Host)
	asked, err := f.nc.SubscribeSync(releasing)
	require.NoError(t, err)
	require.NoError(t, f.nc.Flush())
	first, second := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	p := f.publisher()
	put(t, p, first)
	killed, ended := newWorker(t, "nats://"+cable.Address(), nf.Server.CredentialFile())

	question, err := asked.NextMsg(patience)
	require.NoError(t, err, "the worker does not let the lane go")
	f.enqueueWithoutReady(second)
	f.hold(succeeds, lane.Options{})
	care := wire.CareConsumer(protocol.DefaultPool)
	require.Eventually(t, func() bool {
		c, err := f.js.Consumer(t.Context(), wire.CallsStream(factFleet), care)
		if err != nil {
			return false
		}
		told := c.CachedInfo()
		return told.NumPending == 0 && told.NumAckPending == 0 && told.Delivered.Consumer > 0
	}, patience, 10*time.Millisecond, "nobody looks after the call")
	cable.Before(func(said []byte) bool { return bytes.Contains(said, []byte("PUB "+readyOf(first.Lane())+" ")) }, func() {
		cable.Sever() // so the ready message does not arrive
		_ = killed.Kill()
	})
	require.NoError(t, question.Respond(nil))
	select {
	case <-ended:
	case <-time.After(patience):
		require.Fail(t, "the worker does not make the lane ready")
	}
	require.Equal(t, protocol.StatusOK, f.await(p, second).Status)
	f.requireQuiet()
}

// A worker kills a call and hands its lane over, while nothing can be stored about claims, for as
// long as it takes. The next attempt counts as the second.
func TestLeave_WhatWasKilledIsCountedHoweverLateItIsHandedOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	stream, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(t, err)
	whole := stream.CachedInfo().Config
	without := whole
	without.Subjects = []string{wire.HeartbeatSubject(factFleet, protocol.DefaultPool, ">")}
	tries := f.overhear("tf.claim.>")
	p, call := f.publisher(), newCall("s", exclusive("account/a"))
	put(t, p, call)
	attempts := make(chan int, 2)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if attempts <- run.Attempt; run.Attempt > 1 {
			return succeed(run)
		}
		if _, err := f.js.UpdateStream(t.Context(), without); err != nil {
			t.Errorf("claims cannot be shut out: %v", err)
		}
		run.Abandon()
		<-ctx.Done()
		return interrupted(ctx, run)
	}), lane.Options{})
	require.Equal(t, 1, <-attempts)
	require.Eventually(t, func() bool { return len(tries.all()) >= 3 }, patience, 10*time.Millisecond, "it gave up") // the claim, and two tries
	_, err = f.js.UpdateStream(t.Context(), whole)
	require.NoError(t, err)
	result := f.await(p, call)
	require.Equal(t, protocol.StatusOK, result.Status)
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}

// TestLane_KeptLaneIsHeldUntilNothingLivesThere covers an idle lane whose worker does not let lanes
// linger at all.
func TestLane_KeptLaneIsHeldUntilNothingLivesThere(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var keep atomic.Bool
	keep.Store(true)
	asked := make(chan struct{}, 1)
	host := succeeds
	host.mustHold = func(l protocol.Lane) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		return l == "sandbox/a" && keep.Load()
	}
	h := f.hold(host, lane.Options{})
	kept, other := newCall("s", exclusive("sandbox/a")), newCall("s", exclusive("sandbox/b"))
	put(t, p, kept, other)
	f.await(p, kept)
	f.await(p, other)
	require.Eventually(t, func() bool { return h.Held() == 1 }, patience, time.Millisecond, "the other lane is released")
	for range 3 { // as often as it is looked at while idle
		<-asked
	}
	require.Equal(t, 1, h.Held())
	again := newCall("s", exclusive("sandbox/a"))
	put(t, p, again)
	f.await(p, again)
	keep.Store(false)
	f.requireQuiet()
}

// TestLane_KeptLaneLeavesSlotsToOthers has one slot, and a lane that always has work
// and must not be let go.
func TestLane_KeptLaneLeavesSlotsToOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var keep atomic.Bool
	keep.Store(true)
	host := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.Lane() == "sandbox/a" {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		return succeed(run)
	})
	host.mustHold = func(l protocol.Lane) bool { return l == "sandbox/a" && keep.Load() }
	f.hold(host, lane.Options{Slots: 1})
	makesWay(t, f, p, "sandbox/a", "sandbox/b")
	keep.Store(false)
	f.requireQuiet()
}

// A worker that stops while lanes are on their way to it hands those back: the next one need not
// wait until their leases end.
func TestDrain_WhatIsOnItsWayIsHandedBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(time.Hour)
	p := f.publisher()
	var calls []*protocol.Call
	for round := range 8 {
		begun := make(chan struct{}, 1)
		h := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
			select {
			case begun <- struct{}{}:
			default:
			}
			return succeed(run)
		}), lane.Options{Slots: 64})
		var putting errgroup.Group
		for i := range 200 {
			call := newCall("s", exclusive(fmt.Sprintf("account/%d-%d", round, i)))
			calls = append(calls, call)
			putting.Go(func() error { return p.Enqueue(t.Context(), lane.Outgoing{Call: call}) })
		}
		<-begun
		h.stop()
		require.NoError(t, putting.Wait())
	}
	f.hold(succeeds, lane.Options{Slots: 64})
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}

// What a worker kills when its drain is over goes on elsewhere at once, not when a lease ends.
func TestDrain_AnotherWorkerGoesOnAtOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(time.Hour)
	p := f.publisher()
	took := make([]time.Duration, 9)
	for i := range took {
		call := newCall("s", exclusive("account/a"))
		started, again := make(chan struct{}), make(chan time.Time, 1)
		h, err := lane.NewHolder(t.Context(), f.connect(), hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
			close(started)
			<-ctx.Done()
			return interrupted(ctx, run)
		}), lane.Options{Worker: "drains"})
		require.NoError(t, err)
		ctx, drain := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx, ctx) }()
		put(t, p, call)
		<-started
		next := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
			again <- time.Now()
			return succeed(run)
		}), lane.Options{Worker: "next"})
		begun := time.Now()
		drain()
		took[i] = (<-again).Sub(begun)
		require.Equal(t, 2, f.await(p, call).Attempt)
		require.NoError(t, <-done)
		next.stop()
	}
	slices.Sort(took)
	t.Logf("another worker goes on %s after the drain, at most %s", took[len(took)/2], took[len(took)-1])
}

// TestRun_LeaseEndMovesWithRenewals, and lies ahead for as long as the lane is held.
func TestRun_LeaseEndMovesWithRenewals(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	f.ensurePool(briefLease)
	moved := make(chan time.Duration, 1)
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		first := run.LeaseEnd()
		for ctx.Err() == nil && !run.LeaseEnd().After(first) {
			<-time.After(time.Millisecond)
		}
		moved <- time.Until(run.LeaseEnd())
		return succeed(run)
	}), lane.Options{})
	put(t, p, newCall("s", exclusive("account/acme")))
	left := <-moved
	require.Positive(t, left)
	require.Less(t, left, briefLease)
}

// TestRun_FenceGrowsWithEachHolder: after a worker was lost, and after one has let the lane go.
func TestRun_FenceGrowsWithEachHolder(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	fences := make(chan uint64, 1)
	tells := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		fences <- run.Fence
		if run.Attempt == 1 && run.Call.Tool == "lost" {
			<-ctx.Done()
		}
		return succeed(run)
	})
	call := func(tool string) *protocol.Call {
		c := newCall("s", exclusive("account/acme"))
		c.Tool = tool
		put(t, p, c)
		return c
	}
	f.ensurePool(briefLease)
	frozen := f.connect()
	h, err := lane.NewHolder(t.Context(), frozen, tells, lane.Options{Worker: "lost", Logger: f.logger})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	lost := make(chan error, 1)
	go func() { lost <- h.Run(ctx, ctx) }()
	again := call("lost")
	first := <-fences
	frozen.Close()
	second := f.hold(tells, lane.Options{Worker: "second"})
	after := <-fences
	require.Greater(t, after, first)
	f.await(p, again)
	second.stop()
	f.hold(tells, lane.Options{Worker: "third"})
	last := call("next")
	require.Greater(t, <-fences, after)
	f.await(p, last)
	stop()
	require.NoError(t, <-lost)
}

// requireWaitsFor waits until an operator sees what a call waits for.
func (f *fleet) requireWaitsFor(c *protocol.Call, shown string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		view, err := f.operator().Show(f.t.Context(), protocol.DefaultPool, c.Lane(), 0)
		return err == nil && strings.HasPrefix(view.WaitsFor, shown)
	}, patience, 10*time.Millisecond, shown)
}

// A result names the call that held its lane, and the limit, but no call of another tenant.
func TestWaits_NameWhatTheyWereFor(t *testing.T) {
	t.Parallel()
	const rule, takes = "account/*", 200 * time.Millisecond
	for name, c := range map[string]struct {
		session, tenant string // of the call that waits
		access          func(string) protocol.Use
		held            bool // it is named
	}{
		"the session's own call":    {"s", "", exclusive, true},
		"a call of another session": {"other", "", exclusive, true},
		"a call of another tenant":  {"other", "acme", exclusive, false},
		"a limit":                   {"s", "", shared, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.setLimit(limits.Rule{Lane: rule, Concurrent: 1})
			began, end := make(chan struct{}, 2), make(chan struct{})
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				began <- struct{}{}
				<-end
				return succeed(run)
			}), lane.Options{Slots: 4})
			p, first, other := f.publisher(), newCall("s", c.access("account/a")), newCall(protocol.SessionID(c.session), c.access("account/a"))
			other.Tenant = protocol.Tenant(c.tenant)
			put(t, p, first)
			<-began
			sent, isLimit := time.Now(), name == "a limit"
			put(t, p, other)
			if isLimit { // only what the holder has read waits for a limit
				f.requireWaitsFor(other, "limit "+rule)
			}
			time.Sleep(max(takes, 2*time.Since(sent)))
			close(end)
			waits := f.await(p, other).Waits
			held, of := protocol.CallID(""), protocol.SessionID("")
			if c.held {
				held = first.ID
			}
			if c.held && c.session != "s" {
				of = "s"
			}
			require.Equal(t, held, waits.HeldBy, "%+v", waits)
			require.Equal(t, of, waits.HeldBySession)
			require.Equal(t, isLimit, waits.LimitMS > waits.LaneMS, "%+v", waits)
			require.True(t, !isLimit || waits.Limit == rule, "%+v", waits)
		})
	}
}

// Operators see what a lane's next call waits for, and a result says for how long, and what for.
func TestWaits_ResultsSayWhatACallWaitedFor(t *testing.T) {
	t.Parallel()
	const takes = 200 * time.Millisecond
	at := func(w *protocol.Waits) map[string]float64 {
		return map[string]float64{"slot": w.SlotMS, "lane": w.LaneMS, "after": w.AfterMS, "limit": w.LimitMS, "rate": w.RateMS}
	}
	awaited := newCall("s", exclusive("account/a"))
	waits := newCall("s", exclusive("account/b"))
	waits.After = []protocol.CallRef{{SessionID: awaited.SessionID, ID: awaited.ID}}
	for want, c := range map[string]struct {
		rule  limits.Rule
		slots int
		first *protocol.Call
		other *protocol.Call
		shown string // by an operator
	}{
		"lane": {slots: 4, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/a")), shown: "an earlier call of the lane, which runs"},
		"limit": {
			slots: 4, rule: limits.Rule{Lane: "account/*", Concurrent: 1}, first: newCall("s", shared("account/a")),
			other: newCall("s", shared("account/a")), shown: "limit account/*: concurrent 1",
		},
		"rate": {
			slots: 4, rule: limits.Rule{Lane: "account/*", Rate: "1/h", Burst: 1}, first: newCall("s", shared("account/a")),
			other: newCall("s", shared("account/a")), shown: "limit account/*: rate 1/h",
		},
		"after": {slots: 4, first: awaited, other: waits, shown: "call s/"},
		"slot":  {slots: 1, first: newCall("s", exclusive("account/a")), other: newCall("s", exclusive("account/b")), shown: "a slot: no worker has claimed the lane"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			if c.rule.Lane != "" {
				f.setLimit(c.rule)
			}
			began, end := make(chan struct{}, 2), make(chan struct{})
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				began <- struct{}{}
				<-end
				return succeed(run)
			}), lane.Options{Slots: c.slots})
			p := f.publisher()
			put(t, p, c.first)
			<-began
			sent := time.Now()
			put(t, p, c.other)
			f.requireWaitsFor(c.other, c.shown)
			time.Sleep(max(takes, 2*time.Since(sent))) // longer than all else takes, however slow the machine is
			close(end)
			if c.rule.Rate != "" {
				f.setLimit(limits.Rule{Lane: c.rule.Lane, Rate: perSecond(1000)})
			}
			r := f.await(p, c.other)
			require.Greater(t, at(&r.Waits)[want], 10.0, "%+v of %+v", r.Waits, r)
			after := protocol.CallID("")
			if want == "after" {
				after = c.first.ID
			}
			require.Equal(t, after, r.Waits.AfterCall)
			require.Empty(t, r.Waits.AfterSession, "it is of the same session")
			for why, ms := range at(&r.Waits) {
				if why != want {
					require.Less(t, ms, at(&r.Waits)[want], "%s: %+v", why, r.Waits)
				}
			}
		})
	}
}
