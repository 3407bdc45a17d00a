package lane_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Accepted calls do not need their callers: those of a lane without a ready message, and without
// anybody who waits, are run all the same.
func TestCaretaker_WhatACallerLeftBehindIsRun(t *testing.T) {
	t.Parallel()
	for name, newFleet := range map[string]func(*testing.T) *fleet{
		"one server":    newFleet,
		"three servers": func(t *testing.T) *fleet { t.Helper(); f, _ := newClusterFleet(t); return f }, //nolint:nlreturn // one line
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			for _, lanes := range []int{1, 100} {
				before, after := make([]*protocol.Call, lanes), make([]*protocol.Call, lanes)
				for i := range lanes {
					before[i] = newCall("s", exclusive(fmt.Sprintf("account/%d", i)))
					f.enqueueWithoutReady(before[i])
				}
				h, p := f.hold(succeeds, lane.Options{Slots: 16}), f.publisher()
				for _, call := range before {
					require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
				}
				f.requireQuiet()
				for i := range lanes {
					after[i] = newCall("s", exclusive(fmt.Sprintf("account/%d", i)))
					f.enqueueWithoutReady(after[i])
				}
				begun := time.Now()
				for _, call := range after {
					require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
				}
				t.Logf("%d lanes took %s", lanes, time.Since(begun))
				f.requireQuiet()
				h.stop()
			}
		})
	}
}

// What a worker was about to look after when it was lost is looked after by another one.
func TestCaretaker_WhatALostWorkerLookedAfterIsRun(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	first := f.hold(succeeds, lane.Options{}) // makes the consumer
	first.stop()
	call := newCall("s", exclusive("account/a"))
	f.enqueueWithoutReady(call)
	consumer, err := f.js.Consumer(t.Context(), wire.CallsStream(protocol.DefaultFleet), wire.CareConsumer(protocol.DefaultPool))
	require.NoError(t, err)
	_, err = consumer.Next()
	require.NoError(t, err)
	f.hold(succeeds, lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(f.publisher(), call).Status)
	f.requireQuiet()
}

// A call that waits is looked after once, however long it waits, and also when somebody deletes the
// consumer.
func TestCaretaker_LooksAfterEachEntryOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	started, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	h := f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		once.Do(func() { close(started) })
		<-release
		return succeed(run)
	}), lane.Options{Slots: 2})
	p := f.publisher()
	calls := newCalls(20, exclusive("account/a"))
	put(t, p, calls...)
	<-started
	stream, name := wire.CallsStream(protocol.DefaultFleet), wire.CareConsumer(protocol.DefaultPool)
	require.Eventually(t, func() bool {
		consumer, err := f.js.Consumer(t.Context(), stream, name)
		return err == nil && consumer.CachedInfo().NumPending == 0 && consumer.CachedInfo().NumAckPending == 0
	}, patience, 10*time.Millisecond)
	require.NoError(t, f.js.DeleteConsumer(t.Context(), stream, name))
	other := newCall("s", exclusive("account/b"))
	f.enqueueWithoutReady(other)
	close(release)
	require.Equal(t, protocol.StatusOK, f.await(p, other).Status)
	for _, call := range calls {
		f.await(p, call)
	}
	f.requireQuiet()
	h.stop()
}

// The removal of a claim may get lost while the consumer waits with the ready message: a call that
// comes then has its worker, which lives, let go of the claim.
func TestCaretaker_AClaimThatItsWorkerDoesNotHold(t *testing.T) {
	t.Parallel()
	for name, interrupted := range map[string]bool{"removed": false, "interrupted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			consumer := f.pool(time.Hour) // nothing else comes to it so soon
			p, first, second := f.publisher(), newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
			put(t, p, first)
			ready := f.take(consumer)
			require.NoError(t, ready.NakWithDelay(time.Hour))
			meta, err := ready.Metadata()
			require.NoError(t, err)
			attempts := make(chan int, 2)
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				attempts <- run.Attempt
				return succeed(run)
			}), lane.Options{})
			f.storeClaim(first.Lane(), wire.Claim{Incarnation: f.aLife(), Ready: meta.Sequence.Stream, Interrupted: interrupted})
			f.enqueueWithoutReady(second)
			require.Equal(t, protocol.StatusOK, f.await(p, first).Status)
			require.Equal(t, protocol.StatusOK, f.await(p, second).Status)
			if interrupted {
				require.Equal(t, 2, <-attempts, "the claim said that it may have been started")
			}
			f.requireQuiet()
		})
	}
}

// A holder that was lost may leave the mark behind its claim. It is removed, also where nothing
// else waits: the last look before a release finds it, and has the lane delivered again.
func TestCaretaker_AMarkOfALostHolderIsRemoved(t *testing.T) {
	t.Parallel()
	f, _ := newClusterFleet(t)
	f.ensurePool(0)
	l := newCall("s", exclusive("account/a")).Lane()
	for _, subject := range []string{wire.FloorSubject(factFleet, protocol.DefaultPool, wire.HashLane(l), 1), readyOf(l)} {
		msg := nats.NewMsg(subject)
		msg.Header.Set(wire.HeaderLane, string(l))
		f.publish(msg.Subject, msg.Header, nil)
	}
	f.hold(succeeds, lane.Options{})
	f.requireQuiet()
}

// A claim may be stored so late that the record of its life is gone, while the ready message is
// not delivered for long: a call that comes then is looked after all the same.
func TestCaretaker_AClaimWithoutItsLifeIsNoticed(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(briefLease)
	p, first, second := f.publisher(), newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, first)
	ready, life := f.takeAndDie()
	require.NoError(t, ready.NakWithDelay(time.Hour))
	claims, err := f.js.Stream(t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(t, err)
	require.NoError(t, claims.Purge(t.Context(), jetstream.WithPurgeSubject(wire.HeartbeatSubject(factFleet, protocol.DefaultPool, life))))
	f.enqueueWithoutReady(second)
	f.hold(succeeds, lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, first).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, second).Status)
	f.requireQuiet()
}

// A server that is killed brings a ready message back that the consumer has settled, after the
// lane's calls were looked after, and perhaps the claim with it. The lane is served all the same.
func TestReview_ASettledReadyMessageThatIsBack(t *testing.T) {
	t.Parallel()
	for name, claims := range map[string]func(f *fleet, l protocol.Lane, ready uint64){
		"no claim": func(*fleet, protocol.Lane, uint64) {},
		"the claim of a worker that lives": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Incarnation: f.aLife(), Ready: ready})
		},
		"a later claim of a worker that lives": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Incarnation: f.aLife(), Ready: ready + 1})
		},
		"a claim without an owner": func(f *fleet, l protocol.Lane, ready uint64) {
			f.storeClaim(l, wire.Claim{Ready: ready, Interrupted: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			consumer := f.pool(briefLease)
			call := newCall("s", exclusive("account/a"))
			msg := nats.NewMsg(readyOf(call.Lane()))
			msg.Header.Set(wire.HeaderLane, string(call.Lane()))
			ack, err := f.js.PublishMsg(t.Context(), msg)
			require.NoError(t, err)
			require.NoError(t, f.take(consumer).DoubleAck(t.Context())) // settled, and still there
			f.enqueueWithoutReady(call)
			f.lookAfterByHand()
			f.hold(succeeds, lane.Options{AckWait: briefLease})
			claims(f, call.Lane(), ack.Sequence)
			require.Equal(t, protocol.StatusOK, f.await(f.publisher(), call).Status)
			f.requireQuiet()
		})
	}
}

// lookAfterByHand takes what the caretaker would be told, as one does that finds the lanes ready.
func (f *fleet) lookAfterByHand() {
	f.t.Helper()
	care, err := natsio.EnsureReaper(f.t.Context(), f.js, factFleet, protocol.DefaultPool)
	require.NoError(f.t, err)
	entry, err := care.Next(jetstream.FetchMaxWait(patience))
	require.NoError(f.t, err)
	require.NoError(f.t, entry.DoubleAck(f.t.Context()))
}

// aLife is a life of the default pool.
func (f *fleet) aLife() wire.IncarnationID {
	f.t.Helper()
	stream, err := f.js.Stream(f.t.Context(), wire.ClaimsStream(factFleet))
	require.NoError(f.t, err)
	var beat *jetstream.RawStreamMsg
	require.Eventually(f.t, func() bool {
		beat, err = stream.GetMsg(f.t.Context(), 1, jetstream.WithGetMsgSubject(wire.HeartbeatSubject(factFleet, protocol.DefaultPool, ">")))
		return err == nil
	}, patience, 10*time.Millisecond, "no heartbeat")
	return wire.LifeOfSubject(factFleet, beat.Subject)
}

// storeClaim stores a claim as a server does that brings it back.
func (f *fleet) storeClaim(l protocol.Lane, c wire.Claim) {
	f.t.Helper()
	c.Lane, c.WorkerID, c.Token = l, "w", "brought back"
	body, err := wire.Encode(&c)
	require.NoError(f.t, err)
	f.publish(wire.ClaimSubject(factFleet, protocol.DefaultPool, wire.HashLane(l)), nil, body)
}

// Law: a call that has its result does not run again, whoever sends it once more, and without a
// word that it was sent before.
func TestTwice_ACallWithAResultDoesNotRunAgain(t *testing.T) {
	t.Parallel()
	for name, newFleet := range map[string]func(*testing.T) *fleet{
		"one server":    newFleet,
		"three servers": func(t *testing.T) *fleet { t.Helper(); f, _ := newClusterFleet(t); return f }, //nolint:nlreturn // one line
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			for _, delivery := range []protocol.Delivery{protocol.Idempotent, protocol.AtMostOnce, protocol.Rollback} {
				t.Run(string(delivery), func(t *testing.T) { sendsTwice(t, f, delivery) })
			}
		})
	}
}

func sendsTwice(t *testing.T, f *fleet, delivery protocol.Delivery) {
	t.Helper()
	p := f.publisher()
	calls := newCalls(3, exclusive("account/x"))
	ran := make(chan protocol.CallID, 99)
	known := make(chan protocol.CallID, 99)
	host := tells(ran)
	host.onAlreadySettled = tellsCall(known)
	defer f.hold(host, lane.Options{}).stop()
	for _, call := range calls {
		call.Delivery = delivery
		put(t, p, call)
		require.Equal(t, call.ID, <-ran)
		f.await(p, call)
	}
	f.requireQuiet()

	put(t, f.publisher(), calls[0]) // another process, or a later life of this one
	isKnown(t, known, ran)
	f.sendRaw(calls[1], wire.ReadySubject(protocol.DefaultFleet, calls[1].Pool, wire.HashLane(calls[1].Lane())))
	isKnown(t, known, ran)
	f.sendRaw(calls[2], wire.CallSubject(protocol.DefaultFleet, calls[2].Pool, wire.HashLane(calls[2].Lane()), calls[2].ID))
	f.wake(p, calls[2])
	isKnown(t, known, ran)
	f.requireQuiet()    // an entry that is about to be removed would stand for the call
	put(t, p, calls...) // together
	for range calls {
		isKnown(t, known, ran)
	}
	f.requireQuiet()
	require.Empty(t, ran, "run again")
}

// isKnown waits until a call is found to have its result.
func isKnown(t *testing.T, known, ran <-chan protocol.CallID) {
	t.Helper()
	select {
	case <-known:
	case id := <-ran:
		require.Fail(t, "run again", id)
	}
}

// sendRaw sends a call as a program does that knows the format only.
func (f *fleet) sendRaw(c *protocol.Call, subject string) {
	f.t.Helper()
	body, err := wire.EncodeCall(c)
	require.NoError(f.t, err)
	msg := nats.NewMsg(subject)
	msg.Header.Set(wire.HeaderLane, string(c.Lane()))
	msg.Data = body
	require.Eventually(f.t, func() bool { // the lane may still be held
		_, err := f.js.PublishMsg(f.t.Context(), msg)
		return err == nil
	}, patience, 5*time.Millisecond)
}

// tellsCall tells which calls something happens to.
func tellsCall(to chan<- protocol.CallID) func(*protocol.Call) {
	return func(c *protocol.Call) { to <- c.ID }
}

// wake makes a call's lane ready.
func (f *fleet) wake(p *lane.Publisher, c *protocol.Call) {
	f.t.Helper()
	f.insist(func() error { return p.Wake(f.t.Context(), c) })
}

// Whoever has settled a call knows it for as long as it holds the lane, also when it is told that
// the call has no result, as by a server that was cut off.
func TestTwice_AHolderKnowsWhatItHasSettled(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	ran, known := make(chan protocol.CallID, 9), make(chan protocol.CallID, 9)
	host := tells(ran)
	host.onAlreadySettled, host.mustHold = tellsCall(known), always
	f.hold(host, lane.Options{})
	p, call := f.publisher(), newCall("s", exclusive("account/x"))
	put(t, p, call)
	require.Equal(t, call.ID, <-ran)
	f.await(p, call)
	results, err := f.js.Stream(t.Context(), wire.ResultsStream(factFleet))
	require.NoError(t, err)
	require.NoError(t, results.Purge(t.Context()))
	f.sendRaw(call, wire.CallSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), call.ID))
	isKnown(t, known, ran)
}

// Law: a holder does not look for the result of a call whose caller saw another result of this
// holder before it sent the call. No copy of such a call runs again: not one that arrives late, and
// not one for another holder. A call that was sent before is looked for.
func TestSeen_ANewCallIsNotLookedFor(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	ran := make(chan protocol.CallID, 10)
	host := hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		return succeed(run)
	})
	first := f.hold(host, lane.Options{Linger: time.Hour})
	p := f.publisher()
	follow := func(c *protocol.Call) *protocol.Result {
		t.Helper()
		require.NoError(t, p.Enqueue(t.Context(), lane.Outgoing{Call: c, Followed: true}))
		r := f.await(p, c)
		p.Ended(c, r)
		require.Equal(t, c.ID, <-ran)
		return r
	}
	one, two := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	seen := follow(one)
	looks := f.overhear("$JS.API.DIRECT.GET." + wire.ResultsStream(factFleet))
	sent := f.overhear(wire.CallSubject(factFleet, protocol.DefaultPool, wire.HashLane(one.Lane()), "*"))
	require.Equal(t, seen.Epoch, follow(two).Epoch)
	require.Empty(t, looks.all(), "the caller saw the result of one")

	again := func(c *protocol.Call) {
		t.Helper()
		put(t, p, c, newCall("s", exclusive("account/a")))
		require.NotEqual(t, c.ID, <-ran, "only the call behind it runs")
	}
	again(one)
	copied := sent.all()[0]
	require.Equal(t, wire.Seen{Epoch: seen.Epoch, Sequence: seen.Sequence}, wire.SeenOfHeader(copied.Header.Get(wire.HeaderSeen)))
	late := func() {
		t.Helper()
		f.publish(copied.Subject, copied.Header, copied.Data)
		put(t, p, newCall("s", exclusive("account/a")))
		require.NotEqual(t, two.ID, <-ran)
	}
	late()
	first.stop()
	f.hold(host, lane.Options{Worker: "other"})
	late()
	f.requireQuiet()
	require.Empty(t, ran)
}

// Calls that wait in a lane are looked for among the results together.
func TestLane_OneLookForTheResultsOfAllThatWait(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	calls := newCalls(30, exclusive("account/x"))
	begun, goOn := make(chan struct{}), make(chan struct{})
	first := true
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if first { // the lane's calls run one after the other
			first = false
			close(begun)
			<-goOn
		}
		return succeed(run)
	}), lane.Options{})
	put(t, p, calls[0])
	<-begun
	put(t, p, calls[1:]...)
	asked := f.overhear("$JS.API.DIRECT.GET." + wire.ResultsStream(protocol.DefaultFleet))
	close(goOn)
	for _, call := range calls {
		f.await(p, call)
	}
	require.LessOrEqual(t, len(asked.all()), 3, "one question, and one more when the lane was read in parts")
}
