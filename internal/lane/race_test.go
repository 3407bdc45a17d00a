package lane_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Interleavings that once broke a law, or would without the guard that they name.

// witness is an executor whose release can be watched.
type witness struct {
	lane.DefaultHost

	run     func(ctx context.Context, run *lane.Run) protocol.Result
	release func(protocol.Lane)
}

func (w witness) Execute(ctx context.Context, run *lane.Run) protocol.Result { return w.run(ctx, run) }
func (w witness) Release(l protocol.Lane)                                    { w.release(l) }

// stepAside lets other goroutines and processes go on for a moment.
func stepAside(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// raw stores a call on a subject as a publisher would whose answer was lost.
func raw(t *testing.T, f *fleet, subject string, c *protocol.Call) {
	t.Helper()
	msg := messageOf(t, subject, c)
	f.publish(msg.Subject, msg.Header, msg.Data)
}

// messageOf is a call as a publisher sends it.
func messageOf(t *testing.T, subject string, c *protocol.Call) *nats.Msg {
	t.Helper()
	body, err := wire.EncodeCall(c)
	require.NoError(t, err)
	msg := &nats.Msg{Subject: subject, Header: nats.Header{}, Data: body}
	msg.Header.Set(wire.HeaderLane, string(c.Lane()))
	msg.Header.Set(wire.HeaderCall, string(c.ID))
	msg.Header.Set(wire.HeaderSession, string(c.SessionID))
	return msg
}

// A lane that is let go and claimed again by the same process: its release must
// not come while a call of the next claim runs, so it comes while the claim is still stored.
func TestLane_ReleaseComesBeforeTheNextClaim(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	first, second := newCall("s", exclusive("account/x")), newCall("s", exclusive("account/x"))
	var releasing atomic.Bool
	var once sync.Once
	f.hold(witness{run: func(_ context.Context, run *lane.Run) protocol.Result {
		assert.False(t, releasing.Load(), "Release closes what a running call uses")
		return succeed(run)
	}, release: func(l protocol.Lane) {
		once.Do(func() {
			releasing.Store(true)
			defer releasing.Store(false)
			claims, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
			if assert.NoError(t, err) {
				_, err = claims.GetLastMsgForSubject(t.Context(), wire.ClaimSubject(factFleet, protocol.DefaultPool, wire.HashLane(l)))
				assert.NoError(t, err, "the lane can be claimed during the release")
			}
			assert.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: second})) // somebody wants the lane right now
		})
	}}, lane.Options{Slots: 2})
	put(t, p, first)
	f.await(p, first)
	f.await(p, second)
}

// The ready message is removed, but the answer is lost: whoever removed it must not run anything
// more.
func TestLane_LostAnswerOfTheRemovalIsNoLease(t *testing.T) {
	t.Parallel()
	nf := natsiotest.New(t, natsio.Topology{})
	f := around(t, nf)
	nc, link := nf.ConnectVia()
	x := exclusive("account/x")
	first, other := newCall("s", x), newCall("s", exclusive("account/y"))
	second, third := newCall("s", x), newCall("s", x)
	finishOther, finishSecond := make(chan struct{}), make(chan struct{})
	ranAtA, ranAtB := make(chan protocol.CallID, 9), make(chan protocol.CallID, 9)
	begun, deaf := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	p, beats := f.publisher(), f.overhear(wire.HeartbeatSubject(factFleet, protocol.DefaultPool, ">"))
	a, err := lane.NewHolder(t.Context(), nc, witness{run: func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Attempt > 1 { // it was lost with A's lease, and anybody with a slot takes it over
			return succeed(run)
		}
		ranAtA <- run.Call.ID
		if run.Call.ID == other.ID {
			close(begun)
			<-finishOther
		}
		return succeed(run)
	}, release: func(l protocol.Lane) {
		if l == first.Lane() && once.CompareAndSwap(false, true) {
			<-begun       // a busy machine may not start the other call before this lane has lingered
			link.Deafen() // what A asks still arrives
			close(deaf)
		}
	}}, lane.Options{Worker: "a", Linger: time.Second})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx, ctx) }()

	put(t, p, first)
	require.Equal(t, first.ID, <-ranAtA)
	f.await(p, first)
	put(t, p, other)
	require.Equal(t, other.ID, <-ranAtA)
	<-deaf
	require.Eventually(t, func() bool { return f.stored() == 1 }, patience, 5*time.Millisecond, "x's ready message is not removed")
	put(t, p, second, third)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID != other.ID { // which A lost with its lease
			ranAtB <- run.Call.ID
		}
		if run.Call.ID == second.ID {
			<-finishSecond
		}
		return succeed(run)
	}), lane.Options{Worker: "b"})
	require.Equal(t, second.ID, <-ranAtB)
	link.Cut()
	link.Mend()
	close(finishOther)
	require.Eventually(t, func() bool { return len(beats.lives(t, "a")) > 1 }, patience, 5*time.Millisecond, "A begins no new life")
	require.Empty(t, ranAtA, "A runs a call of the lane while B runs another one")
	close(finishSecond)
	f.await(p, third) // B may have handed the lane over, because the other call waits for its slot
	stop()
	require.NoError(t, <-done)
}

// The first try to put a call arrives late, as the ready message, behind the copy in the mailbox.
func TestLane_LateFirstTryRunsNothingTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	call := newCall("s", exclusive("account/x"))
	again := *call
	again.Again = true
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), &again)
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	var runs atomic.Int32
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		runs.Add(1)
		return succeed(run)
	}), lane.Options{})
	f.requireQuiet()
	require.EqualValues(t, 1, runs.Load())
}

// A worker takes over a lane in which a call is settled and not removed, and drains before its
// turn comes. The next worker must still know that the call may be settled.
func TestLane_TakeoverThatDrainsKeepsWhatItKnew(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	_, _, err := natsio.EnsurePool(t.Context(), f.js, protocol.DefaultFleet, protocol.DefaultPool, briefLease)
	require.NoError(t, err)
	p := f.publisher()
	long, settled := newCall("s", shared("account/x")), newCall("s", shared("account/x"))
	for _, call := range []*protocol.Call{long, settled} {
		raw(t, f, wire.CallSubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), call)
	}
	require.NoError(t, p.Wake(t.Context(), long))
	f.takeAndDie()
	f.storeResult(settled)

	started, goOn := make(chan struct{}), make(chan struct{})
	b := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		close(started)
		<-goOn
		return succeed(run)
	}), lane.Options{Worker: "b", Slots: 1})
	<-started
	drained := make(chan struct{})
	go func() {
		b.stop()
		close(drained)
	}()
	require.Eventually(t, b.Drains, patience, time.Millisecond)
	close(goOn)
	<-drained
	var runs atomic.Int32
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		runs.Add(1)
		return succeed(run)
	}), lane.Options{Worker: "c"})
	f.requireQuiet()
	require.Zero(t, runs.Load(), "a settled call ran again")
}

// One publisher puts a call twice at once.
func TestLane_PutTwiceByOnePublisher(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	before, twice := newCall("s", exclusive("account/x")), newCall("s", exclusive("account/x"))
	ready := f.overhear(readyOf(before.Lane()))
	put(t, p, before)
	put(t, p, twice)
	put(t, p, twice)
	require.Eventually(t, func() bool { return len(ready.all()) > 1 }, patience, 5*time.Millisecond, "the lane is not made ready")
	var runs atomic.Int32
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		runs.Add(1)
		return succeed(run)
	}), lane.Options{})
	f.await(p, twice)
	f.requireQuiet()
	require.EqualValues(t, 2, runs.Load())
}

// A lane whose calls overlap, so that it is never idle, must not keep all slots for ever.
func TestLane_OverlappingCallsLeaveSlotsToOthers(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	other := newCall("s", exclusive("account/other"))
	began := make(chan struct{})
	done := make(chan struct{}, 64)
	follows, over := make(chan struct{}), make(chan struct{}) // a call ends when another one follows it
	defer close(over)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID == other.ID {
			close(began)
			return succeed(run)
		}
		select {
		case follows <- struct{}{}: // one before it ends
			select {
			case <-follows:
			case <-over:
			}
		case <-follows:
		case <-over:
		}
		select {
		case done <- struct{}{}:
		case <-over:
		}
		return succeed(run)
	}), lane.Options{Slots: 2})
	for range 8 {
		put(t, p, newCall("s", shared("account/hot")))
	}
	<-done
	put(t, p, other)
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		select {
		case <-began:
			return
		case <-done:
			put(t, p, newCall("s", shared("account/hot")))
		case <-limit.C:
			t.Fatal("the other lane did not get a slot")
		}
	}
}
