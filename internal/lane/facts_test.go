package lane_test

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Guard: at most one ready message a lane is what makes holding it holding the lane.
func TestFact_OneReadyMessagePerLane(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	subject := readyOf("account/a")
	consumer := f.pool(0)
	_, err := f.js.Publish(t.Context(), subject, nil)
	require.NoError(t, err)
	_, err = f.js.Publish(t.Context(), subject, nil)
	require.True(t, refusedBySubject(err), "ready: %v", err)
	msg := f.take(consumer)
	_, err = f.js.Publish(t.Context(), subject, nil)
	require.True(t, refusedBySubject(err), "held: %v", err)
	meta, err := msg.Metadata()
	require.NoError(t, err)
	f.deleteMsg(meta.Sequence.Stream)
	_, err = f.js.Publish(t.Context(), subject, nil)
	require.NoError(t, err, "released")
}

// Guard: a call has a subject of its own, so that a publisher may try again without enqueueing
// twice.
func TestFact_EnqueueingTwiceIsRefused(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	before, call := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))
	put(t, p, before, call) // the first is the ready message, the second in the mailbox
	require.EqualValues(t, 2, f.stored())
	_, err := f.js.Publish(t.Context(), wire.CallSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), call.ID), nil)
	require.True(t, refusedBySubject(err), "%v", err)
	put(t, f.publisher(), call)
	require.EqualValues(t, 2, f.stored())
	_, err = f.js.Publish(t.Context(), wire.CallSubject(factFleet, call.Pool, wire.HashLane(call.Lane()), wire.RandomCallID()), nil)
	require.NoError(t, err, "another call")
}

// Guard: where several servers have them, mailboxes are read from the stream's leader, never by
// direct get.
func TestFact_MailboxIsReadFromTheLeader(t *testing.T) {
	t.Parallel()
	f, _ := newClusterFleet(t)
	direct := f.overhear("$JS.API.DIRECT.GET." + wire.CallsStream(factFleet))
	leader := f.overhear("$JS.API.STREAM.MSG.GET." + wire.CallsStream(factFleet))
	p := f.publisher()
	f.hold(succeeds, lane.Options{})
	for i := range 20 {
		call := newCall("s", exclusive(fmt.Sprintf("account/%d", i%3)))
		put(t, p, call)
		f.await(p, call)
	}
	f.requireQuiet()
	require.NotEmpty(t, leader.all())
	require.Empty(t, direct.all())
}

// Guard: whoever was cut off commits nothing after its trusted time, whatever the server would take
// from it.
func TestFact_CutOffHolderDoesNotRelyOnTheServer(t *testing.T) {
	t.Parallel()
	nf := natsiotest.New(t, natsio.Topology{})
	f := &fleet{t: t, logger: nf.Logger, nc: nf.NC, js: nf.JS, dial: nf.Connect}
	nc, link := nf.ConnectVia()
	const ackWait = briefLease
	started, ended := make(chan struct{}), make(chan error, 1)
	a, err := lane.NewHolder(t.Context(), nc, hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(started)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return succeed(run) // a tool that does not care
	}), lane.Options{Worker: "a", AckWait: ackWait})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx, ctx) }()
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	put(t, p, call)
	<-started
	link.Deafen() // what it sends arrives, renewals too, so that the server believes it to be alive
	select {
	case cause := <-ended:
		require.ErrorIs(t, cause, lane.ErrLost)
	case <-time.After(patience):
		t.Error("it trusts renewals that nobody confirmed")
	}
	r, err := p.Result(t.Context(), call.SessionID, call.ID)
	require.NoError(t, err)
	require.Nil(t, r)
	nc.Close()
	stop()
	require.NoError(t, <-done)
	f.hold(succeeds, lane.Options{Worker: "b"})
	r = f.await(p, call)
	require.Equal(t, protocol.WorkerID("b"), r.WorkerID)
	require.Equal(t, 2, r.Attempt)
}

// Guard: attempts are counted by start marks, because the server's count starts anew with a new
// consumer.
func TestFact_DeliveriesAreCountedAnewByANewConsumer(t *testing.T) {
	t.Parallel()
	const ackWait = briefLease
	for name, test := range map[string]struct {
		delivery protocol.Delivery
		lost     int
		status   protocol.Status
		code     protocol.Code
		attempt  int
	}{
		"may run again":      {protocol.Idempotent, 2, protocol.StatusFailed, protocol.CodeAttemptsExhausted, 2},
		"must not run again": {protocol.AtMostOnce, 1, protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			p := f.publisher()
			call := newCall("s", exclusive("account/a"))
			call.Delivery, call.MaxAttempts = test.delivery, 2
			put(t, p, call)
			for range test.lost {
				f.loseAt(ackWait)
			}
			name := wire.ReadyConsumer(protocol.DefaultPool)
			require.NoError(t, f.js.DeleteConsumer(t.Context(), wire.CallsStream(factFleet), name))
			msg := f.take(f.pool(ackWait))
			meta, err := msg.Metadata()
			require.NoError(t, err)
			require.EqualValues(t, 1, meta.NumDelivered, "it was delivered %d times before", test.lost)
			require.NoError(t, f.js.DeleteConsumer(t.Context(), wire.CallsStream(factFleet), name))

			var runs atomic.Int32
			f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
				runs.Add(1)
				return succeed(run)
			}), lane.Options{AckWait: ackWait})
			r := f.await(p, call)
			require.Zero(t, runs.Load(), "started once more")
			require.Equal(t, test.status, r.Status)
			require.Equal(t, test.code, r.Error.Code)
			require.Equal(t, test.attempt, r.Attempt)
			f.requireQuiet()
		})
	}
}

// Guard: what a lost worker leaves runs in its order.
func TestFact_OrderOutlivesALostWorker(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	var calls []*protocol.Call
	var want []protocol.CallID
	for range 3 {
		call := newCall("s", exclusive("account/a"))
		calls, want = append(calls, call), append(want, call.ID)
	}
	put(t, p, calls...)
	f.loseAt(briefLease)
	var mu sync.Mutex
	var ran []protocol.CallID
	var running, overlaps atomic.Int32
	others := make(chan struct{}, 9)
	f.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.Lane() == calls[0].Lane() {
			if running.Add(1) > 1 {
				overlaps.Add(1)
			}
			defer running.Add(-1)
			mu.Lock()
			ran = append(ran, run.Call.ID)
			mu.Unlock()
			// When a call of another lane has run, the next one would have started if it could.
			if err := p.Enqueue(t.Context(), lane.Outgoing{Call: newCall("s", exclusive("account/other"))}); err != nil {
				t.Error(err)
			}
			<-others
		} else {
			others <- struct{}{}
		}
		return succeed(run)
	}), lane.Options{Slots: 4})
	for _, call := range calls {
		f.await(p, call)
	}
	require.Equal(t, want, ran)
	require.Zero(t, overlaps.Load())
}

// Guard: a removed message is acknowledged too, or what the consumer remembers might grow by one a
// release.
func TestFact_NothingStaysPendingAfterReleases(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	acks := f.overhear("$JS.ACK." + wire.CallsStream(factFleet) + ".>")
	p := f.publisher()
	f.hold(succeeds, lane.Options{Slots: 32})
	for _, lanes := range []int{1, 300} {
		var calls []*protocol.Call
		for i := range lanes {
			calls = append(calls, newCall("s", exclusive(fmt.Sprintf("account/%d", i))))
		}
		put(t, p, calls...)
		f.requireQuiet()
		info, err := f.pool(0).Info(t.Context())
		require.NoError(t, err)
		require.Zero(t, info.NumAckPending)
		require.Zero(t, info.NumPending)
		for _, call := range calls {
			f.await(p, call)
		}
	}
	require.Eventually(t, func() bool {
		released := 0
		for _, msg := range acks.all() {
			if len(msg.Data) == 0 {
				released++
			}
		}
		return released >= 301
	}, patience, 5*time.Millisecond, "releases are not acknowledged")
}

// Guard: the consumer's MaxAckPending bounds the lanes that are held, so it is far above the
// server's default of 1,000.
func TestFact_MaxAckPendingBoundsHeldLanes(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	small, err := f.js.CreateConsumer(t.Context(), wire.CallsStream(factFleet), jetstream.ConsumerConfig{
		Durable: "small", FilterSubject: wire.ReadySubject(factFleet, "other", "*"), AckPolicy: jetstream.AckExplicitPolicy,
	})
	require.NoError(t, err)
	require.Equal(t, 1000, small.CachedInfo().Config.MaxAckPending, "the default")

	const lanes = 1100
	p := f.publisher()
	var arrived atomic.Int32
	all := make(chan struct{})
	f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
		if arrived.Add(1) == lanes {
			close(all)
		}
		select {
		case <-all:
			return succeed(run)
		case <-ctx.Done():
			return interrupted(ctx, run)
		}
	}), lane.Options{Slots: lanes})
	var calls []*protocol.Call
	for i := range lanes {
		call := newCall("s", exclusive(fmt.Sprintf("account/%d", i)))
		call.RunTimeout = protocol.MillisOf(2 * patience)
		calls = append(calls, call)
	}
	put(t, p, calls...)
	select {
	case <-all:
	case <-time.After(patience):
		t.Fatalf("%d of %d lanes are held at once", arrived.Load(), lanes)
	}
	for _, call := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, call).Status)
	}
	f.requireQuiet()
}

// Facts about three replicas, one after the other on one cluster.
func TestFact_OnThreeServers(t *testing.T) {
	t.Parallel()
	f, c := newClusterFleet(t)
	server, _, _ := strings.Cut(strings.TrimPrefix(c.URL(), "nats://"), ",")
	t.Run("ADeletionIsARemoval", func(t *testing.T) { deletionIsRemoval(t, f) })               //nolint:paralleltest // on the same cluster
	t.Run("NoWakeUpIsLostByARelease", func(t *testing.T) { noWakeUpIsLost(t, f, server, "") }) //nolint:paralleltest // on the same cluster
}

// Guard: a deletion is answered when it is applied, so that whoever publishes afterwards is
// accepted.
func deletionIsRemoval(t *testing.T, f *fleet) {
	t.Helper()
	s, err := f.js.Stream(t.Context(), wire.CallsStream(factFleet))
	require.NoError(t, err)
	subject := wire.ReadySubject(factFleet, "deleted", wire.HashLane(protocol.Lane("account/a")))
	for range 100 {
		ack, err := f.js.Publish(t.Context(), subject, nil)
		require.NoError(t, err)
		require.NoError(t, s.DeleteMsg(t.Context(), ack.Sequence))
	}
}

// Guard: a release removes, waits for the answer, and looks; then the call of every publisher that
// was refused is found.
func TestFact_NoWakeUpIsLostByARelease(t *testing.T) {
	t.Parallel()
	nf := natsiotest.Listening(t, natsio.Topology{})
	server, err := url.Parse(nf.Server.URL())
	require.NoError(t, err)
	noWakeUpIsLost(t, around(t, nf), server.Host, nf.Server.CredentialFile())
}

// noWakeUpIsLost appends a call in each moment of a release, and makes the lane ready behind it, as
// a publisher does, once.
func noWakeUpIsLost(t *testing.T, f *fleet, server, creds string) {
	t.Helper()
	cable := natsiotest.NewCable(t, server)
	worker := *f
	worker.dial = func() *nats.Conn {
		nc, err := natsio.Connect(t.Context(), "nats://"+cable.Address(), natsio.ConnectOptions{Name: "worker", Creds: creds})
		require.NoError(t, err)
		return nc
	}
	goOn := make(chan struct{})
	worker.hold(hostFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		if run.Call.Tool == "waits" {
			<-goOn
		}
		return succeed(run)
	}), lane.Options{})
	s, err := store.Open(t.Context(), f.nc, factFleet)
	require.NoError(t, err)
	says := func(words ...string) func([]byte) bool {
		return func(said []byte) bool {
			return !slices.ContainsFunc(words, func(word string) bool { return !bytes.Contains(said, []byte(word)) })
		}
	}
	p := f.publisher()
	for moment, refused := range map[string]bool{"before the removal": true, "before the look": false, "after the look": false} {
		l := protocol.ResourceKey("account/" + strings.ReplaceAll(moment, " ", "-"))
		first, second := newCall("s", exclusive(string(l))), newCall("s", exclusive(string(l)))
		mailbox := wire.MailboxFilter(factFleet, first.Pool, wire.HashLane(first.Lane()))
		made := make(chan bool, 1)
		appends := func() {
			raw(t, f, wire.CallSubject(factFleet, second.Pool, wire.HashLane(second.Lane()), second.ID), second)
			missing, err := p.MakesReady(t.Context(), second)
			assert.NoError(t, err)
			made <- missing
		}
		first.Tool = "waits"
		put(t, p, first)
		ready, err := s.Ready(t.Context(), first.Pool, wire.HashLane(first.Lane()))
		require.NoError(t, err)
		cable.Before(says("$JS.API.STREAM.MSG.DELETE."+wire.CallsStream(factFleet)+" ", fmt.Sprintf(`"seq":%d}`, ready.Sequence)), func() {
			switch moment {
			case "before the removal":
				appends()
			case "before the look":
				cable.Before(says("$JS.API.", wire.CallsStream(factFleet), mailbox), appends)
			default:
				cable.Before(says("$JS.API.STREAM.MSG.DELETE."+wire.ClaimsStream(factFleet)+" "), appends)
			}
		})
		goOn <- struct{}{}
		f.await(p, first)
		select {
		case missing := <-made:
			require.Equal(t, refused, !missing, "%s: the ready message", moment)
		case <-time.After(patience):
			require.Fail(t, "the lane is not let go", moment)
		}
		require.Equal(t, protocol.StatusOK, f.await(p, second).Status, moment)
		f.requireQuiet()
	}
}
