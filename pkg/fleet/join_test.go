package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newJoined is a fleet whose server is inside a coordinator, and a worker of a pool that has joined
// it.
func newJoined(t *testing.T, pool protocol.Pool) *hostile {
	t.Helper()
	dir := t.TempDir()
	s, err := embedded.Start(t.Context(), embedded.Options{Data: dir, Listen: "127.0.0.1:0", TLS: true})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	fingerprint, err := join.FingerprintIn(dir)
	require.NoError(t, err)
	_, secret, err := join.Store{Dir: dir}.Add(t.Context(), join.Entry{Role: join.RoleWorker, Fleet: fleetName, Pool: pool})
	require.NoError(t, err)
	token := join.Token{Addresses: s.Joinable().Addresses, Authority: fingerprint, Secret: secret, Role: join.RoleWorker, Fleet: fleetName, Pool: pool}
	connect := func(url string, o natsio.ConnectOptions) (*nats.Conn, jetstream.JetStream) {
		nc, err := natsio.Connect(t.Context(), url, o)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
		require.NoError(t, err)
		return nc, js
	}
	h := &hostile{t: t}
	h.owner, h.js = connect("", natsio.ConnectOptions{Name: "owner", Options: s.Options()})
	h.poolOwner, h.poolJS = h.owner, h.js
	if pool != protocol.DefaultPool {
		options, err := s.PoolOptions(fleetName, pool)
		require.NoError(t, err)
		h.poolOwner, h.poolJS = connect("", natsio.ConnectOptions{Name: "owner of the pool", Options: options})
	}
	require.NoError(t, natsio.Ensure(t.Context(), h.js, natsio.Topology{}))
	require.NoError(t, natsio.Ensure(t.Context(), h.poolJS, natsio.Topology{}))
	require.NoError(t, natsio.MakePool(t.Context(), h.js, fleetName, protocol.DefaultPool))
	require.NoError(t, natsio.MakePool(t.Context(), h.poolJS, fleetName, pool))
	for _, subject := range []string{
		wire.EventSubject(fleetName, victim), wire.ResultSubject(fleetName, victim, victim), wire.ReadySubject(fleetName, protocol.DefaultPool, victim),
		wire.CallSubject(fleetName, protocol.DefaultPool, victim, victim), wire.WorkspaceSubject(fleetName, victim),
	} {
		_, err := h.js.Publish(t.Context(), subject, []byte("secret"))
		require.NoError(t, err)
	}
	h.worker, _ = connect(token.URL(), natsio.ConnectOptions{Name: "worker", TLS: natsio.TLS{Authority: fingerprint}})
	return h
}

// TestJoin_AWorkersTokenIsNotTheFleets: a worker that has joined with a token publishes on the
// subjects of its work and on no other one, as in TestDeploy_EachUserAndEachSubject. It subscribes
// to no other's. One of another pool than the default one changes and reads nothing of the fleet.
func TestJoin_AWorkersTokenIsNotTheFleets(t *testing.T) {
	t.Parallel()
	for _, pool := range []protocol.Pool{protocol.DefaultPool, "other"} {
		t.Run(string(pool), func(t *testing.T) {
			t.Parallel()
			h := newJoined(t, pool)
			before := h.state()
			h.tries(restricted{"worker", h.worker, h.poolJS, workerRights(pool), pool, workerHas(pool)})
			if pool != protocol.DefaultPool {
				require.Equal(t, before, h.state())
				for seq := 1; seq < 10; seq++ {
					for _, stream := range []string{wire.CallsStream(fleetName), wire.ResultsStream(fleetName)} {
						reply, err := h.worker.Request("$JS.API.STREAM.MSG.GET."+stream, fmt.Appendf(nil, `{"seq":%d}`, seq), time.Minute)
						require.NoError(t, err)
						require.NotContains(t, string(reply.Data), victim, "of another pool")
					}
				}
			}
			for _, subject := range []string{
				">", "tf.>", "tf.event.>", "tf.output.>", "tf.done.>", "tf.result.>", "tf.answer.third.>", "tf.stored.third.>", "_INBOX.>", "_INBOX_coordinator.>", "$JS.>", "$SYS.>",
			} {
				require.True(t, h.subscribes(subject), "subscribes to %s", subject)
			}
			for _, subject := range natsio.PoolRights(fleetName, pool).Subscribe {
				require.False(t, h.subscribes(subject), "needs %s", subject)
			}
			stream, err := h.js.Stream(t.Context(), wire.SessionsStream(fleetName))
			require.NoError(t, err)
			require.EqualValues(t, 1, stream.CachedInfo().State.Msgs, "no journal was written")
		})
	}
}
