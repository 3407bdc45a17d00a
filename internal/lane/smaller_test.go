package lane_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A call is put while the server is away. The one that comes back takes smaller messages: the
// payload goes through the object store.
func TestPut_ToAServerThatTakesLessThanBefore(t *testing.T) {
	t.Parallel()
	port, dir := natsiotest.FreePorts(t, 1)[0], t.TempDir()
	start := func(maxPayload int32) *server.Server {
		s, err := server.NewServer(&server.Options{
			Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, MaxPayload: maxPayload, NoSigs: true, NoLog: true,
		})
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		require.True(t, s.ReadyForConnections(20*time.Second))
		return s
	}
	before := start(1 << 20)
	nc, err := natsio.Connect(t.Context(), before.ClientURL(), natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	p, err := lane.NewPublisher(t.Context(), nc, protocol.DefaultFleet)
	require.NoError(t, err)
	before.Shutdown()
	before.WaitForShutdown()
	require.Eventually(t, nc.IsReconnecting, patience, time.Millisecond)
	call := newCall("s", exclusive("account/a"))
	call.Payload = protocol.CommandRun{Command: strings.Repeat("x", 256<<10)}
	done := make(chan error, 1)
	go func() { done <- p.Put(t.Context(), []lane.Outgoing{{Call: call}})[0] }()
	start(64 << 10)
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("it is not accepted")
	}
}
