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
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
