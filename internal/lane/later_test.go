package lane_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newSigner makes a key pair.
func newSigner(t *testing.T) (*signing.Signer, *signing.Keys) {
	t.Helper()
	dir := t.TempDir()
	signer, err := signing.Make(dir)
	require.NoError(t, err)
	keys, err := signing.Open(filepath.Join(dir, signing.PublicFile))
	require.NoError(t, err)
	return signer, keys
}

// later is a call that waits for its time.
func later(key string, delay time.Duration) *protocol.Call {
	c := newCall("s", exclusive(key))
	c.NotBefore = c.IssuedAt.Add(delay)
	return c
}

// Law: a call with a time does not start before it, on the server's clock, and delays no other call
// of its lane. Its place in the lane's order is its time.
func TestLater_EntersItsLaneAtItsTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	signer, keys := newSigner(t)
	b := newBlocks(t)
	f.hold(b, lane.Options{Keys: keys})
	p := f.publisher()
	p.Signer = signer
	const delay = 3 * time.Second
	began := time.Now()
	waits := later("account/a", delay)
	put(t, p, waits)
	now := newCall("s", exclusive("account/a"))
	require.Equal(t, protocol.StatusOK, f.result(p, now).Status)
	require.Equal(t, now.ID, <-b.ran)
	require.Equal(t, protocol.StatusOK, f.await(p, waits).Status)
	require.GreaterOrEqual(t, time.Since(began), delay)
	require.Equal(t, waits.ID, <-b.ran)
	f.requireQuiet()
}

// Law: workers fetch nothing for a call while it waits for its time, however many other calls run.
func TestLater_CostsNoFetches(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hold(succeeds, lane.Options{})
	p := f.publisher()
	fetches := f.overhear("$JS.API.CONSUMER.MSG.NEXT." + wire.CallsStream(factFleet) + "." + wire.CareConsumer(protocol.DefaultPool))
	waits, soon := later("account/a", time.Hour), later("account/b", 3*time.Second)
	put(t, p, waits, soon)
	require.Eventually(t, func() bool {
		require.Equal(t, protocol.StatusOK, f.result(p, newCall("s", exclusive("account/a"))).Status)
		return time.Since(soon.IssuedAt) > 2*time.Second
	}, patience, 100*time.Millisecond)
	require.Empty(t, fetches.all())
	require.Equal(t, protocol.StatusOK, f.await(p, soon).Status)
	before := len(fetches.all())
	require.Positive(t, before)
	require.NoError(t, p.Cancel(t.Context(), waits))
	require.Equal(t, protocol.StatusCancelled, f.await(p, waits).Status)
	f.requireQuiet()
}

// Law: a call that is stored once more after it was moved, as by a worker that crashed before it
// removed the call from where it waited, runs once.
func TestLater_MovedTwiceRunsOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	b := newBlocks(t)
	f.hold(b, lane.Options{})
	p := f.publisher()
	call := later("account/a", time.Second)
	put(t, p, call)
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	require.Equal(t, call.ID, <-b.ran)
	put(t, p, call) // stored again, and due in a second
	f.requireQuiet()
	require.Empty(t, b.ran)
}

// Law: a call that waits for its time can be cancelled, by its caller and by an operator, and is
// answered within seconds.
func TestLater_IsCancelledBeforeItsTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	b := newBlocks(t)
	f.hold(b, lane.Options{})
	p := f.publisher()
	o, err := operator.New(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	byCaller, byOperator := later("account/a", time.Hour), later("account/b", time.Hour)
	put(t, p, byCaller, byOperator)

	view, err := o.Show(t.Context(), protocol.DefaultPool, "account/b", 0)
	require.NoError(t, err)
	require.Equal(t, operator.StateDelayed, view.State)
	require.Equal(t, 1, view.Delayed)
	require.Equal(t, operator.CallDelayed, view.Calls[0].State)
	require.WithinDuration(t, time.Now().Add(time.Hour), view.Calls[0].NotBefore, time.Minute)
	require.Equal(t, "its time: "+view.Calls[0].NotBefore.UTC().Format(time.RFC3339), view.WaitsFor)
	list, err := o.List(t.Context(), protocol.DefaultPool, 0)
	require.NoError(t, err)
	require.Len(t, list.Lanes, 2)
	require.Equal(t, protocol.Lane("account/a"), list.Lanes[0].Lane)

	require.NoError(t, p.Cancel(t.Context(), byCaller))
	require.NoError(t, o.Skip(t.Context(), protocol.DefaultPool, "account/b", byOperator.ID))
	for _, call := range []*protocol.Call{byCaller, byOperator} {
		r := f.await(p, call)
		require.Equal(t, protocol.StatusCancelled, r.Status)
		require.Zero(t, r.Attempt)
	}
	f.requireQuiet()
	require.Empty(t, b.ran)
}

// A cancel request that comes when the call has just been moved reaches the call.
func TestLater_ACancelThatIsLateFollowsTheCall(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	b := newBlocks(t)
	p := f.publisher()
	call := later("account/a", time.Hour)
	call.Tool = "blocks"
	moved := *call
	moved.NotBefore = time.Time{}
	f.hold(b, lane.Options{})
	put(t, p, &moved)
	<-b.begun
	msg := messageOf(t, wire.LaterCancelSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
	msg.Data = nil
	_, err := f.js.PublishMsg(t.Context(), msg)
	require.NoError(t, err)
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	f.requireQuiet()
}

// Law: the queue timeout and the deadline of such a call begin when it enters its lane.
func TestLater_TimesBeginThen(t *testing.T) {
	t.Parallel()
	call := later("account/a", time.Hour)
	call.Deadline = call.NotBefore.Add(time.Minute)
	require.NoError(t, call.Validate())
	require.Equal(t, time.Minute, call.LifeTime())
	require.False(t, call.Expired(59*time.Second))
	require.True(t, call.Expired(time.Minute))
	call.Deadline = call.NotBefore
	require.ErrorContains(t, call.Validate(), "must be before deadline")
	call = later("account/a", 400*24*time.Hour)
	require.ErrorContains(t, call.Validate(), "must be at most 8784h0m0s after issued_at")
}

// Law: what waits outlives the workers that were there when it was accepted.
func TestLater_SurvivesWorkers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	first := newBlocks(t)
	h := f.hold(first, lane.Options{})
	p := f.publisher()
	call := later("account/a", 4*time.Second)
	put(t, p, call)
	require.Equal(t, protocol.StatusOK, f.result(p, newCall("s", exclusive("account/b"))).Status)
	h.stop()
	second := newBlocks(t)
	f.hold(second, lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	require.Equal(t, call.ID, <-second.ran)
	f.requireQuiet()
}

// Many calls that wait delay no other call, and all enter their lanes.
func TestLater_Many(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.hold(succeeds, lane.Options{Slots: 8})
	p := f.publisher()
	var calls []*protocol.Call
	for i := range 300 { // more than the reaper takes at once
		calls = append(calls, later(fmt.Sprintf("account/%d", i%30), 4*time.Second))
	}
	put(t, p, calls...)
	require.Equal(t, protocol.StatusOK, f.result(p, newCall("s", exclusive("account/1"))).Status)
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}

// A call whose time came while no worker was there enters its lane late: it is signed as before,
// and its deadline is that of its time.
func TestLater_NoWorkerAtItsTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	signer, keys := newSigner(t)
	p := f.publisher()
	p.Signer = signer
	runs, over := later("account/a", time.Second), later("account/b", time.Second)
	over.Deadline = over.NotBefore.Add(time.Second)
	put(t, p, runs, over)
	<-time.After(time.Until(over.Deadline) + 100*time.Millisecond) // the fleet has no clock to set
	f.hold(succeeds, lane.Options{Keys: keys})
	require.Equal(t, protocol.StatusOK, f.await(p, runs).Status)
	r := f.await(p, over)
	require.Equal(t, protocol.CodeDeadline, r.Error.Code)
	require.Zero(t, r.Attempt)
	f.requireQuiet()

	// Within a day a signature counts for a call that enters its lane late, and says so.
	enters := func(late time.Duration, header string) *protocol.Result {
		call := later("account/c", time.Minute)
		msg := messageOf(t, wire.CallSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
		signed, err := signer.Sign(factFleet, msg.Data, time.Now().Add(-time.Minute-late))
		require.NoError(t, err)
		msg.Header.Set(wire.HeaderSigned, signed)
		if header != "" {
			msg.Header.Set(wire.HeaderLate, header)
		}
		_, err = f.js.PublishMsg(t.Context(), msg)
		require.NoError(t, err)
		put(t, p, newCall("s", exclusive("account/c"))) // makes the lane ready
		return f.await(p, call)
	}
	require.Equal(t, protocol.StatusOK, enters(time.Hour, "3600000").Status)
	require.Equal(t, codes.NotSigned, enters(time.Hour, "").Error.Code)
	require.Equal(t, codes.NotSigned, enters(48*time.Hour, "172800000").Error.Code)
}

// A stream that is nearly full takes no calls that wait for their time, and has room to move those
// that it took.
func TestLater_AStreamThatIsNearlyFull(t *testing.T) {
	t.Parallel()
	f := around(t, natsiotest.New(t, natsio.Topology{MaxCalls: 30}))
	p := f.publisher()
	var accepted []*protocol.Call
	for i := range 40 {
		call := later(fmt.Sprintf("account/%d", i), 2*time.Second)
		err := p.Enqueue(t.Context(), lane.Outgoing{Call: call})
		if err == nil {
			accepted = append(accepted, call)
			continue
		}
		require.ErrorIs(t, err, lane.ErrFull)
		require.ErrorIs(t, err, lane.ErrNotSent)
	}
	require.Len(t, accepted, 27)
	f.hold(succeeds, lane.Options{})
	for _, call := range accepted {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}

// A call behind one that waits for its time makes its lane ready at once: the one that waits does
// not.
func TestLater_OwesNoReadyMessage(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.pool(0)
	p := f.publisher()
	waits := later("account/a", time.Hour)
	require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: waits, Followed: true}))
	call := newCall("s", exclusive("account/a"))
	require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: call, Followed: true}))
	stream, err := f.js.Stream(t.Context(), wire.CallsStream(factFleet))
	require.NoError(t, err)
	msg, err := stream.GetLastMsgForSubject(t.Context(), readyOf("account/a"))
	require.NoError(t, err)
	require.NotEmpty(t, msg.Data, "the call is the ready message")
	p.Ended(call, nil)
	p.Ended(waits, nil)
}

// blocks is an executor whose first call begins and then runs until the test ends it; all others
// are done at once.
type blocks struct {
	testHost

	begun, end chan struct{}
	ran        chan protocol.CallID // the others
}

func newBlocks(t *testing.T) *blocks {
	t.Helper()
	b := &blocks{begun: make(chan struct{}, 1), end: make(chan struct{}), ran: make(chan protocol.CallID, 99)}
	b.execute = func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.Tool != "blocks" {
			b.ran <- run.Call.ID
			return succeed(run)
		}
		b.begun <- struct{}{}
		select {
		case <-b.end:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}
	return b
}

// waiting is a call that waits and may be refused.
func waiting(key string, bound func(*protocol.Call)) *protocol.Call {
	c := newCall("s", exclusive(key))
	bound(c)
	return c
}

func queueTimeout(c *protocol.Call) { c.QueueTimeout = 300 }
func deadline(c *protocol.Call)     { c.Deadline = c.IssuedAt.Add(300 * time.Millisecond) }

// Law: what waits is answered when its time is over, or when it is cancelled, also while a call
// before it runs.
func TestDue_BehindACallOfItsLane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	b := newBlocks(t)
	f.hold(b, lane.Options{Slots: 1})
	first := newCall("s", exclusive("account/x"))
	first.Tool = "blocks"
	put(t, p, first)
	<-b.begun
	answersOverdue(t, f, p, "account/x")
	close(b.end)
	require.Equal(t, protocol.StatusOK, f.await(p, first).Status)
	f.requireQuiet()
	require.Empty(t, b.ran, "started although it was answered")
}

// Law: the same in a lane that nobody holds, because all slots of all workers are taken.
func TestDue_InALaneThatNobodyHolds(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	b := newBlocks(t)
	f.hold(b, lane.Options{Slots: 1})
	first := newCall("s", exclusive("account/other"))
	first.Tool = "blocks"
	put(t, p, first)
	<-b.begun
	answersOverdue(t, f, p, "account/x")
	close(b.end)
	require.Equal(t, protocol.StatusOK, f.await(p, first).Status)
	f.requireQuiet()
	require.Empty(t, b.ran, "started although it was answered")
}

// answersOverdue puts calls that cannot start, and waits for their results.
func answersOverdue(t *testing.T, f *fleet, p *lane.Publisher, key string) {
	t.Helper()
	for name, test := range map[string]struct {
		bound  func(*protocol.Call)
		status protocol.Status
		code   protocol.Code
	}{
		"queue timeout": {queueTimeout, protocol.StatusRejected, protocol.CodeQueueTimeout},
		"deadline":      {deadline, protocol.StatusRejected, protocol.CodeDeadline},
		"cancel":        {func(*protocol.Call) {}, protocol.StatusCancelled, protocol.CodeCancelled},
	} {
		calls := []*protocol.Call{waiting(key, test.bound), waiting(key, test.bound)}
		put(t, p, calls...) // one is the ready message, if the lane is idle, the other in the mailbox
		if name == "cancel" {
			for _, c := range calls {
				require.NoError(t, p.Cancel(t.Context(), c))
			}
		}
		for _, c := range calls {
			r := f.await(p, c)
			require.Equal(t, test.status, r.Status, name)
			require.Equal(t, test.code, r.Error.Code, name)
			require.Zero(t, r.Attempt, name)
			// It is due after 300 ms, and looked for four times a second.
			require.Less(t, r.QueueMS, float64(time.Minute.Milliseconds()), name)
		}
	}
}

// Law: a call that waits for its time is cancelled also while all slots are taken.
func TestDue_ACallThatWaitsForItsTime(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	b := newBlocks(t)
	f.hold(b, lane.Options{Slots: 1})
	first := newCall("s", exclusive("account/other"))
	first.Tool = "blocks"
	put(t, p, first)
	<-b.begun
	call := later("account/x", time.Hour)
	put(t, p, call)
	care, err := natsio.EnsureReaper(t.Context(), f.js, factFleet, pool)
	require.NoError(t, err)
	require.NoError(t, f.take(care).NakWithDelay(time.Hour)) // as of a worker that got it with others
	require.NoError(t, f.operator().Skip(t.Context(), pool, "account/x", call.ID))
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	close(b.end)
	require.Equal(t, protocol.StatusOK, f.await(p, first).Status)
	f.requireQuiet()
}

// Law: a holder that only settles answers what is due in its lanes, and runs nothing. What is not
// due waits there for a worker, in its order, and other lanes are as they were.
func TestDue_InTheLanesOfAHolderThatOnlySettles(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	b := newBlocks(t)
	settles := f.hold(b, lane.Options{Settles: []protocol.Lane{"account/x"}})
	stays, other := newCall("s", exclusive("account/x")), newCall("s", exclusive("account/other"))
	put(t, p, stays, other)
	answersOverdue(t, f, p, "account/x")
	call := later("account/x", time.Hour)
	put(t, p, call)
	require.NoError(t, f.operator().Skip(t.Context(), pool, "account/x", call.ID))
	require.Equal(t, protocol.StatusCancelled, f.await(p, call).Status)
	require.NoError(t, p.Cancel(t.Context(), other))
	require.Empty(t, b.ran)
	settles.stop()
	r, err := p.Result(t.Context(), other.SessionID, other.ID)
	require.NoError(t, err)
	require.Nil(t, r)
	f.hold(b, lane.Options{Slots: 1})
	require.Equal(t, protocol.StatusOK, f.await(p, stays).Status)
	require.Equal(t, protocol.StatusCancelled, f.await(p, other).Status)
	f.requireQuiet()
	require.Equal(t, stays.ID, <-b.ran)
	require.Empty(t, b.ran)
}

// Law: a holder that only settles may be lost at any moment, as when it has claimed the lane, or
// has stored a result. Then a worker has the lane within the lease, and each call has one result
// and has run once, in its order.
func TestDue_AHolderThatOnlySettlesIsLost(t *testing.T) {
	t.Parallel()
	for name, subject := range map[string]wire.Subject{
		"it has claimed the lane": wire.ClaimSubject(protocol.DefaultFleet, pool, wire.HashLane("account/x")),
		"it has stored a result":  wire.ResultSubject(protocol.DefaultFleet, "s", "*"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			b := newBlocks(t)
			f.ensurePool(f.newLease(pool))
			calls := make([]*protocol.Call, 6)
			for i := range calls {
				if calls[i] = newCall("s", exclusive("account/x")); i%2 > 0 {
					calls[i].Delivery = protocol.AtMostOnce
				}
			}
			put(t, p, calls...)
			require.NoError(t, p.Cancel(t.Context(), calls[2]))
			stored, err := f.nc.SubscribeSync(subject)
			require.NoError(t, err)
			require.NoError(t, f.nc.Flush())
			nc := f.connect()
			lost, err := lane.NewHolder(t.Context(), nc, b, lane.Options{Worker: "lost", Logger: f.logger, Settles: []protocol.Lane{"account/x"}})
			require.NoError(t, err)
			ctx, end := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = lost.Run(ctx, ctx) // its connection is closed
			}()
			_, err = stored.NextMsg(patience)
			require.NoError(t, err)
			nc.Close()
			f.hold(b, lane.Options{Slots: 4})
			for i, call := range calls {
				want := protocol.StatusOK
				if i == 2 {
					want = protocol.StatusCancelled
				} else {
					require.Equal(t, call.ID, <-b.ran)
				}
				require.Equal(t, want, f.await(p, call).Status, "call %d", i)
			}
			f.requireQuiet()
			require.Empty(t, b.ran)
			end()
			<-ended
		})
	}
}
