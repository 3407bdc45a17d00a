package lane_test

import (
	"context"
	"log/slog"
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
	require.ErrorIs(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: refused}})[0], lane.ErrFull)
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
			require.ErrorIs(t, p.Enqueue(t.Context(), []lane.Outgoing{{Call: refused}})[0], lane.ErrFull)
			close(release)
			require.NoError(t, other.Purge(t.Context()))
			put(t, p, again)
			require.Equal(t, protocol.StatusOK, f.await(p, runs).Status)
			require.Equal(t, protocol.StatusOK, f.await(p, again).Status)
			f.requireQuiet()
		})
	}
}
