package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
		require.NoError(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: c, Followed: true}})[0])
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
