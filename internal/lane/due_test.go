package lane_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
