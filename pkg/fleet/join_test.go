package fleet_test

import (
	"slices"
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

// newJoined is a fleet whose server is inside a coordinator, and a worker that has joined it.
func newJoined(t *testing.T) *hostile {
	t.Helper()
	dir := t.TempDir()
	s, err := embedded.Start(t.Context(), embedded.Options{Data: dir, Listen: "127.0.0.1:0", TLS: true})
	require.NoError(t, err)
	t.Cleanup(s.Close)
	fingerprint, err := join.FingerprintIn(dir)
	require.NoError(t, err)
	_, secret, err := join.Store{Dir: dir}.Add(t.Context(), join.Entry{Role: join.RoleWorker, Fleet: fleetName, Pool: protocol.DefaultPool})
	require.NoError(t, err)
	token := join.Token{Addresses: s.Joinable().Addresses, Authority: fingerprint, Secret: secret, Role: join.RoleWorker, Fleet: fleetName, Pool: protocol.DefaultPool}
	connect := func(url string, o natsio.ConnectOptions) *nats.Conn {
		nc, err := natsio.Connect(t.Context(), url, o)
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		return nc
	}
	owner := connect("", natsio.ConnectOptions{Name: "owner", Options: s.Options()})
	h := &hostile{t: t, owner: owner, poolOwner: owner}
	h.js, err = jetstream.New(owner, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	h.poolJS = h.js
	require.NoError(t, natsio.Ensure(t.Context(), h.js, natsio.Topology{}))
	for _, pool := range []protocol.Pool{protocol.DefaultPool, "other"} {
		require.NoError(t, natsio.MakePool(t.Context(), h.js, fleetName, pool))
	}
	h.worker = connect(token.URL(), natsio.ConnectOptions{Name: "worker", TLS: natsio.TLS{Authority: fingerprint}})
	return h
}

// TestJoin_AWorkersTokenIsNotTheFleets: a worker that has joined with a token publishes on the
// subjects of its work and on no other one: not itself, not by an answer to its own request, and
// not by the server's answer to any request that it may send. It subscribes to no other's.
func TestJoin_AWorkersTokenIsNotTheFleets(t *testing.T) {
	t.Parallel()
	h := newJoined(t)
	user := restricted{"worker", h.worker, workerRights(), []string{
		"$JS.API.INFO", "tf.beat.default.rights", "tf.done.rights.rights", "tf.stored.default.rights.rights", // as in TestDeploy_EachUserAndEachSubject
	}}
	heard := h.overhear(user)
	for _, subject := range eachSubject() {
		if slices.Contains(user.may, subject) {
			require.False(t, h.publishes(subject), "needs %s", subject)
			continue
		}
		require.True(t, h.publishes(subject), "publishes on %s", subject)
		h.writeBy(user, subject)
	}
	h.settle(user)
	require.Equal(t, user.has, heard(), "it has others publish on them")
	for _, subject := range []string{
		">", "tf.>", "tf.event.>", "tf.output.>", "tf.done.>", "tf.result.>", "tf.answer.other.>", "tf.stored.other.>", "_INBOX.>", "_INBOX_coordinator.>", "$JS.>", "$SYS.>",
	} {
		require.True(t, h.subscribes(subject), "subscribes to %s", subject)
	}
	for _, subject := range natsio.PoolRights(fleetName, protocol.DefaultPool).Subscribe {
		require.False(t, h.subscribes(subject), "needs %s", subject)
	}
	stream, err := h.js.Stream(t.Context(), wire.SessionsStream(fleetName))
	require.NoError(t, err)
	require.Zero(t, stream.CachedInfo().State.Msgs, "no journal was written")
}
