package lane

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Law: what asks its context, or for the end of its lease, knows that the lease has ended before
// any timer of the process fires: also by a clock on which the process was stopped, or the machine.
func TestLeased_LooksAtTheClock(t *testing.T) {
	t.Parallel()
	suspended := time.Now().Add(-time.Minute).Round(0) // the monotonic clock stood still
	for name, renewed := range map[string]time.Time{"stopped": time.Now().Add(-time.Minute), "suspended": suspended} {
		for way, ask := range map[string]func(context.Context, *Run) bool{
			"Err": func(ctx context.Context, _ *Run) bool { return ctx.Err() != nil },
			"Done": func(ctx context.Context, _ *Run) bool {
				select {
				case <-ctx.Done():
					return true
				default:
					return false
				}
			},
			"LeaseEnd": func(ctx context.Context, run *Run) bool { return time.Now().After(run.LeaseEnd()) && ctx.Err() != nil },
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				t.Parallel()
				l := newIncarnation(t.Context(), 10*time.Second)
				l.timer.Stop() // it has not fired yet
				l.lease.Renew(time.Now())
				run := &Run{LeaseEnd: l.heldUntil}
				ctx, cancel := context.WithTimeout(l.ctx, time.Hour)
				defer cancel()
				ctx = run.Leased(ctx)
				other := run.Leased(t.Context())
				require.False(t, ask(ctx, run))
				require.NoError(t, other.Err())
				l.lease = core.Lease{Length: l.lease.Length}
				l.lease.Renew(renewed)
				require.True(t, ask(ctx, run))
				require.ErrorIs(t, context.Cause(ctx), ErrLost)
				require.Error(t, other.Err(), "a longer life ends as well")
				l.lease.Renew(time.Now()) // an answer that was late
				require.False(t, run.LeaseEnd().After(time.Now()), "what is lost does not return")
			})
		}
	}
}

// noop is a host whose calls do nothing.
type noop struct{ DefaultHost }

func (noop) Execute(_ context.Context, run *Run) protocol.Result {
	return wire.NewResult(run.Call, protocol.StatusOK, nil)
}

func (noop) Release(protocol.Lane) {}

// A ready message that a publisher made, and that is delivered while a ticket of its lane is being
// taken, is held as soon as that has ended, and not after a lease.
func TestTickets_AReadyMessageDoesNotWaitForALease(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	h, err := NewHolder(t.Context(), f.Connect(), noop{}, Options{
		Fleet: f.Name, Pool: protocol.DefaultPool, Worker: "w", Slots: 4, AckWait: 10 * time.Minute, Logger: f.Logger,
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, context.WithoutCancel(ctx)) }()
	p, err := NewPublisher(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	call := &protocol.Call{
		ID: "c", SessionID: "s", Tool: "noop", Pool: protocol.DefaultPool, Resources: []protocol.Use{{Key: "sandbox/s", Access: protocol.Exclusive}},
		Delivery: protocol.Idempotent, IssuedAt: time.Now().UTC(), Payload: wire.Noop{},
	}
	hash := wire.HashLane(call.Lane())
	h.tickets.beginClaim(hash)
	require.NoError(t, p.Enqueue(t.Context(), Outgoing{Call: call}))
	require.Eventually(t, func() bool {
		h.tickets.mu.Lock()
		defer h.tickets.mu.Unlock()
		return h.tickets.claiming[hash] != nil
	}, time.Minute, time.Millisecond)
	h.tickets.endClaim(hash) // another worker was faster, or the lane was ready
	require.Eventually(t, func() bool {
		r, err := p.Result(t.Context(), "s", "c")
		return err == nil && r != nil
	}, 2*time.Minute, time.Millisecond)
	stop()
	require.NoError(t, <-done)
}

// While the server is away many lanes try the same things many times a second. What is cancelled is
// no trouble.
func TestTroubles_EachKindIsLoggedOnceAMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		all := &retryLog{logger: slog.New(slog.NewTextHandler(&log, nil))}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		all.log(cancelled, "one")
		require.Empty(t, log.String())
		for range 90 {
			for range 3 {
				all.log(t.Context(), "one", slog.String("error", "away"))
				all.log(t.Context(), "other")
			}
			time.Sleep(time.Second)
		}
		require.Equal(t, 4, strings.Count(log.String(), "\n"))
		require.Equal(t, 2, strings.Count(log.String(), `msg=one error=away`))
	})
}

// Each of the requests that wait at the server fails when its consumer is away.
func TestHolder_PullTroubleIsLoggedOnceAndSaysWhatHappened(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	var log bytes.Buffer
	nc := f.Connect()
	t.Cleanup(nc.Close)
	h, err := NewHolder(t.Context(), nc, idleHost{}, Options{Worker: "w", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	for range 10 {
		h.onPullError(errNoConsumer)
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="pull request failed" pool=default error="the pool's consumer does not answer"`)

	nc.Close()
	log.Reset()
	for range 10 {
		h.onPullError(errors.New("server shutdown"))
	}
	require.Equal(t, 1, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), `msg="consumer cannot be checked" pool=default error=`)
	require.Contains(t, log.String(), "connection closed")
}

// A ready message is left out only while an earlier call has no result, and no longer than owedFor
// without one.
func TestUsedLanes_AReadyMessageIsOwed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		u, a := readyCache{makeReady: func(poolLane) { made++ }}, poolLane{lane: "a"}
		requireMade := func(n int, why string) {
			synctest.Wait()
			u.mu.Lock()
			defer u.mu.Unlock()
			require.Equal(t, n, made, why)
		}
		require.False(t, u.use(a))
		u.onAppended(a, true)
		u.onAccepted(a)
		requireMade(1, "no earlier call")
		time.Sleep(time.Hour)
		require.True(t, u.use(a), "its call has no result")
		u.onAppended(a, true)
		u.onAccepted(a)
		requireMade(1, "it waits for a result")
		for range 10 { // calls end all the time
			time.Sleep(deferReadyFor / 2)
			u.onAppended(a, true)
			u.onAccepted(a)
			u.onEnded(a, wire.Seen{})
		}
		requireMade(1, "calls end")
		u.onAppended(a, false)
		requireMade(2, "nobody would say when it ends")
		time.Sleep(2 * deferReadyFor)
		requireMade(3, "none ends")
		u.onAppended(a, true)
		u.onAccepted(a)
		for range 3 {
			u.onEnded(a, wire.Seen{})
		}
		time.Sleep(time.Hour)
		requireMade(3, "all have ended")
		require.Empty(t, u.deferred)
		require.False(t, u.use(a))
		require.False(t, u.use(poolLane{lane: "b"}))
	})
}

// A lane whose last calls were appended one after the other is kept, unless its ready message had
// to be published after all.
func TestUsedLanes_ALaneThatIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		made := 0
		u, a := readyCache{makeReady: func(poolLane) { made++ }}, poolLane{lane: "a"}
		one := func(takes time.Duration) {
			u.use(a)
			u.onAppended(a, true)
			u.onAccepted(a)
			time.Sleep(takes)
			u.onEnded(a, wire.Seen{})
			synctest.Wait()
		}
		for range 3 * retainedAfter {
			one(deferReadyFor / 2)
		}
		require.Equal(t, retainedAfter+1, made, "it is kept")
		one(2 * deferReadyFor)
		require.Equal(t, retainedAfter+2, made, "it did not end soon")
		one(deferReadyFor / 2)
		require.Equal(t, retainedAfter+3, made)
		time.Sleep(retainTime)
		for range 2 * retainedAfter {
			one(deferReadyFor / 2)
		}
		require.Equal(t, 2*retainedAfter+4, made, "it was not used for a while")
		require.Empty(t, u.deferred)
	})
}

func TestUsedLanes_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		u := readyCache{makeReady: func(poolLane) {}}
		lane := func(i int) poolLane { return poolLane{lane: protocol.Lane(rune(i))} }
		for i := range 4 * maxUsed {
			u.use(lane(i))
			if i%8 == 0 {
				u.onAccepted(lane(i))
			}
			if i%64 == 0 { // each wait of the simulated time takes long itself
				time.Sleep(retainTime)
			}
		}
		require.LessOrEqual(t, len(u.lanes), 2*maxUsed)
		require.True(t, u.use(lane(0)), "its call is open")
	})
}

// A holder that forgets calls says up to which sequence.
func TestSettledCalls_SayWhatTheyForget(t *testing.T) {
	t.Parallel()
	var s settledCalls
	for n := range uint64(3*maxSettled + 1) {
		id := func(n uint64) protocol.CallID { return protocol.CallID(strconv.FormatUint(n, 10)) }
		s.add(id(n), n^1) // not in the order of their sequences
		for _, known := range []uint64{0, n / 2, n} {
			require.True(t, s.has(id(known)) || known^1 <= s.forgotten, "%d after %d: all to %d may be forgotten", known, n, s.forgotten)
		}
	}
	require.Equal(t, uint64(2*maxSettled-1), s.forgotten)
	require.False(t, s.has("0"))
}

// TestSecret_OfAFleetIsReadForAllCalls: a call that ends while the secret is read leaves those
// behind it with a proof.
func TestSecret_OfAFleetIsReadForAllCalls(t *testing.T) {
	t.Parallel()
	ended, end := context.WithCancel(t.Context())
	end()
	var s secret
	read := func(ctx context.Context) ([]byte, error) { return []byte("key"), ctx.Err() }
	s.get(ended, read)
	require.Equal(t, "key", string(s.get(t.Context(), read)))
}

// What a call that was accepted and read late has waited for: the call that ran in its lane when it
// was accepted, also if others have ended since, and the lane was released in between; and for the
// rest of the time a slot.
func TestWaits_OfACallThatIsReadLate(t *testing.T) {
	t.Parallel()
	on := func(key protocol.ResourceKey) []protocol.Use {
		return []protocol.Use{{Key: key, Access: protocol.Exclusive}}
	}
	for name, c := range map[string]struct {
		after time.Duration // the beginning that the call is accepted
		uses  []protocol.Use
		lane  float64
		by    protocol.CallID
	}{
		"while the call ran":         {0, on("account/a/one"), 3000, "earlier"},
		"while the next one ran":     {3100 * time.Millisecond, on("account/a/other"), 400, "other"},
		"when both had ended":        {4 * time.Second, on("account/a/one"), 0, ""},
		"but it conflicts with none": {0, on("account/a/third"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := &Holder{heldLanes: heldLanes{held: map[wire.LaneHash]*heldLane{}, recent: map[wire.LaneHash]released{}}}
				ready := &readyMessage{lane: "account/a", hash: wire.HashLane("account/a")}
				begun := time.Now()
				first := newHeldLane(h, &incarnation{ctx: t.Context()}, ready)
				h.held[first.hash] = first
				ends := func(id protocol.CallID, key protocol.ResourceKey) {
					first.ended.add(endedCall{core.EarlierOf(&protocol.Call{ID: id, SessionID: "s"}), on(key), time.Now()})
				}
				for range 2 * maxEnded {
					ends("before", "account/a/one")
				}
				time.Sleep(3 * time.Second)
				ends("earlier", "account/a/one")
				time.Sleep(500 * time.Millisecond)
				ends("other", "account/a/other")
				h.remove(first)
				time.Sleep(1500 * time.Millisecond)
				second := newHeldLane(h, &incarnation{ctx: t.Context()}, ready)
				time.Sleep(time.Second) // until the call is read
				now, accepted := time.Now(), begun.Add(c.after)
				e := &core.Entry{Call: &protocol.Call{ID: "c", SessionID: "s", Resources: c.uses}, Accepted: accepted}
				second.waits.Start(e, now)
				second.noteHolder(e, now)
				waits := second.waitsOf(e, &Run{Queued: now.Sub(accepted), InLane: time.Second}, now)
				require.Equal(t, protocol.Waits{LaneMS: c.lane, HeldBy: c.by, SlotMS: 6000 - float64(c.after.Milliseconds()) - c.lane}, waits)
			})
		})
	}
}
