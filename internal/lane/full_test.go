package lane_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call that a lost worker may have started has its next start counted by a mark. A stream without
// room for the mark has to empty all the same: a call that waited for room would keep the slot that
// makes it.
func TestFull_ALaneWhoseWorkerWasLostMovesOn(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	f.ensurePool(briefLease)
	call := newCall("s", exclusive("account/1"))
	raw(t, f, wire.ReadySubject(protocol.DefaultFleet, call.Pool, wire.HashLane(call.Lane())), call)
	f.takeAndDie()
	f.fill(1)
	f.hold(newHistory(), lane.Options{})
	result := f.await(f.publisher(), call)
	require.Equal(t, protocol.StatusOK, result.Status)
	require.Equal(t, 2, result.Attempt)
	f.requireQuiet()
}

// A call waits in a lane that lost its ready message while the stream was full. Whoever takes the
// place that becomes free next makes the lane ready: a call that only joined the one that waits
// would leave no room for that.
func TestFull_WhatTakesTheLastPlaceMakesItsLaneReady(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	x := exclusive("account/x")
	waits, refused, last := newCall("s", x), newCall("s", x), newCall("s", x)
	raw(t, f, wire.CallSubject(protocol.DefaultFleet, waits.Pool, wire.HashLane(waits.Lane()), waits.ID), waits)
	f.fill(1)
	require.ErrorIs(t, p.Enqueue(t.Context(), lane.Outgoing{Call: refused}), lane.ErrFull)
	f.fill(2)
	put(t, p, last)
	f.hold(newHistory(), lane.Options{})
	require.Equal(t, protocol.StatusOK, f.await(p, waits).Status)
	require.Equal(t, protocol.StatusOK, f.await(p, last).Status)
	f.requireQuiet()
}

// What fills the server, or the fleet's account, may be a stream that is not the fleet's. Calls are
// refused as by a full calls stream, and what is in the fleet comes to its end: a result waits for
// room.
func TestFull_WhereOthersHaveTakenAllRoom(t *testing.T) {
	t.Parallel()
	const room = 8 << 20
	for name, limit := range map[string]func(s *server.Server) error{
		"of the server": func(*server.Server) error { return nil },
		"of the account": func(s *server.Server) error {
			return s.GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{
				"": {MaxStore: room / 2, MaxStreams: -1, MaxConsumers: -1, MaxMemory: -1, MaxAckPending: -1},
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := server.NewServer(&server.Options{
				Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: room, NoSigs: true, NoLog: true,
			})
			require.NoError(t, err)
			s.Start()
			t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
			require.True(t, s.ReadyForConnections(time.Minute))
			require.NoError(t, limit(s))
			nc, err := natsio.Connect(context.WithoutCancel(t.Context()), s.ClientURL(), natsio.ConnectOptions{Name: "test"})
			require.NoError(t, err)
			t.Cleanup(nc.Close)
			js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
			require.NoError(t, err)
			require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{MaxBytes: 1 << 20}))
			f := &fleet{t: t, nc: nc, js: js, dial: func() *nats.Conn {
				more, err := natsio.Connect(context.WithoutCancel(t.Context()), s.ClientURL(), natsio.ConnectOptions{Name: "test"})
				require.NoError(t, err)
				return more
			}, logger: slog.New(slog.DiscardHandler)}
			p := f.publisher()
			runs, refused, again := newCall("s", exclusive("account/a")), newCall("s", exclusive("account/b")), newCall("s", exclusive("account/c"))
			started, release := make(chan struct{}), make(chan struct{})
			f.hold(hostFunc(func(ctx context.Context, run *lane.Run) protocol.Result {
				if run.Call.ID == runs.ID {
					close(started)
					select {
					case <-release:
					case <-ctx.Done():
					}
				}
				return succeed(run)
			}), lane.Options{})
			put(t, p, runs)
			<-started
			other, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"other"}})
			require.NoError(t, err)
			for _, size := range []int{64 << 10, 1 << 10, 1} {
				for err = nil; err == nil; {
					_, err = js.Publish(t.Context(), "other", make([]byte, size))
				}
			}
			require.ErrorIs(t, p.Enqueue(t.Context(), lane.Outgoing{Call: refused}), lane.ErrFull)
			close(release)
			require.NoError(t, other.Purge(t.Context()))
			put(t, p, again)
			require.Equal(t, protocol.StatusOK, f.await(p, runs).Status)
			require.Equal(t, protocol.StatusOK, f.await(p, again).Status)
			f.requireQuiet()
		})
	}
}

// lines passes on what is logged, a line at a time.
type lines struct{ news chan string }

func (w *lines) Write(line []byte) (int, error) {
	w.news <- string(line)
	return len(line), nil
}

// next is the next line about a result that cannot be stored. On a busy machine there may be other
// troubles.
func (w *lines) next() string {
	for line := range w.news {
		if strings.Contains(line, "result cannot be stored") {
			return line
		}
	}
	return ""
}

// Calls of several lanes cannot store their results for a while, and try it again and again.
func TestTrouble_OfManyCallsIsToldOnce(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	log := &lines{news: make(chan string, 1000)}
	f.logger = slog.New(slog.NewTextHandler(log, nil))
	p, g := f.publisher(), newGate()
	h := f.hold(g, lane.Options{Slots: 3})
	calls := []*protocol.Call{newCall("s", exclusive("account/a")), newCall("s", exclusive("account/b")), newCall("s", exclusive("account/c"))}
	for _, c := range calls {
		put(t, p, c)
		g.requireStart(t, c.ID)
	}
	require.NoError(t, f.js.DeleteStream(t.Context(), wire.ResultsStream(protocol.DefaultFleet)))
	tries := f.overhear("tf.result.>")
	for range calls {
		g.letGo <- struct{}{}
	}
	require.Contains(t, log.next(), `msg="result cannot be stored" lane=account/`)
	require.Eventually(t, func() bool { return len(tries.all()) > len(calls) }, patience, 10*time.Millisecond, "tried again")
	require.NoError(t, natsio.Ensure(t.Context(), f.js, natsio.Topology{}))
	for _, c := range calls {
		require.Equal(t, protocol.StatusOK, f.await(p, c).Status)
	}
	h.stop()
	close(log.news)
	require.Empty(t, log.next())
}

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
				fault := p.Enqueue(t.Context(), lane.Outgoing{Call: newCall("s", exclusive("account/b"))})
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
