package lane_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A stream is deleted while a worker runs. It says so, nothing else about it, and goes on with one
// that is made again.
func TestMissing_AStreamThatIsDeletedIsTold(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{wire.CallsStream(protocol.DefaultFleet), wire.ResultsStream(protocol.DefaultFleet)} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			log := &lines{news: make(chan string, 1000)}
			f.logger = slog.New(slog.NewTextHandler(log, nil))
			h := f.hold(succeeds, lane.Options{AckWait: briefLease})
			p := f.publisher()
			before := newCall("s", exclusive("account/a"))
			put(t, p, before)
			f.await(p, before)
			require.Eventually(t, func() bool { return h.Held() == 0 }, patience, time.Millisecond)
			require.NoError(t, f.js.DeleteStream(t.Context(), stream))
			for line := range log.news {
				if strings.Contains(line, "level=ERROR") {
					require.Contains(t, line, stream)
					require.Contains(t, line, "nats stream restore")
					break
				}
			}
			require.Eventually(t, func() bool { return errors.Is(p.Streams(t.Context()), natsio.ErrNoStream) }, patience, 100*time.Millisecond)
			if stream == wire.CallsStream(protocol.DefaultFleet) {
				fault := p.Enqueue(t.Context(), []lane.Outgoing{{Call: newCall("s", exclusive("account/b"))}})[0]
				require.ErrorIs(t, fault, natsio.ErrNoStream)
				require.ErrorIs(t, fault, lane.ErrNotSent)
			}
			require.NoError(t, natsio.Ensure(t.Context(), f.js, natsio.Topology{}))
			require.Eventually(t, func() bool { return p.Streams(t.Context()) == nil }, patience, 100*time.Millisecond)
			after := newCall("s", exclusive("account/a"))
			put(t, p, after)
			require.Equal(t, protocol.StatusOK, f.await(p, after).Status)
			f.requireQuiet()
			h.stop()
		})
	}
}

// Somebody deletes the pool's consumer while a lane is held. A worker that has nothing to do makes
// it again, and is given what is held, as if nobody had it. It finds the claim, and leaves the
// lane.
func TestRemade_ALaneIsNotHeldTwice(t *testing.T) {
	t.Parallel()
	for name, newFleet := range map[string]func(*testing.T) *fleet{
		"one server":    newFleet,
		"three servers": func(t *testing.T) *fleet { t.Helper(); f, _ := newClusterFleet(t); return f }, //nolint:nlreturn // one line
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t)
			f.ensurePool(steadyLease / 3) // a pull request that nobody answers ends after a third of it
			p := f.publisher()
			var starts atomic.Int32
			begun, end := make(chan struct{}, 9), make(chan struct{})
			work := hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
				starts.Add(1)
				begun <- struct{}{}
				select {
				case <-end:
					return succeed(run)
				case <-ctx.Done():
					return interrupted(ctx, run)
				}
			})
			f.hold(work, lane.Options{})
			call := newCall("s", exclusive("account/x"))
			put(t, p, call)
			<-begun
			f.hold(work, lane.Options{}) // it waits for a lane
			stream, name := wire.CallsStream(protocol.DefaultFleet), wire.ReadyConsumer(protocol.DefaultPool)
			require.NoError(t, f.js.DeleteConsumer(t.Context(), stream, name))
			require.Eventually(t, func() bool { // it is made again, and has delivered the ready message
				c, err := f.js.Consumer(t.Context(), stream, name)
				return err == nil && c.CachedInfo().NumAckPending == 1
			}, patience, 10*time.Millisecond)
			other := newCall("s", exclusive("account/y")) // whoever takes this one is done with the other lane
			put(t, p, other)
			<-begun
			close(end)
			require.Equal(t, protocol.StatusOK, f.await(p, other).Status)
			r := f.await(p, call)
			require.Equal(t, protocol.StatusOK, r.Status)
			require.Equal(t, 1, r.Attempt)
			require.EqualValues(t, 2, starts.Load(), "started while it ran")
			f.requireQuiet()
		})
	}
}
