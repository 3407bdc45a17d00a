package lane

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
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
	h, err := NewHolder(t.Context(), f.Connect(), noop{}, Options{Fleet: f.Name, Pool: protocol.DefaultPool, Worker: "w", Slots: 4, AckWait: 10 * time.Minute, Logger: f.Logger})
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
	require.NoError(t, p.Enqueue(t.Context(), []Outgoing{{Call: call}})[0])
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
	h, err := NewHolder(t.Context(), nc, nil, Options{Worker: "w", Logger: slog.New(slog.NewTextHandler(&log, nil))})
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
