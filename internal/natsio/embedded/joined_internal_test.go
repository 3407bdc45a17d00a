package embedded

import (
	"slices"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestJoin_AWorkerMayWhatDeployAllows: the rights of a worker that joins by a token are those of
// the worker's user in deploy/nats.
func TestJoin_AWorkerMayWhatDeployAllows(t *testing.T) { //nolint:paralleltest // it sets the environment
	for _, name := range []string{"FLEET_PASSWORD", "WORKER_PASSWORD", "READER_PASSWORD"} {
		t.Setenv(name, "secret")
	}
	options, err := server.ProcessConfigFile("../../../deploy/nats/accounts.conf")
	require.NoError(t, err)
	i := slices.IndexFunc(options.Users, func(u *server.User) bool { return u.Username == "worker" })
	require.GreaterOrEqual(t, i, 0)
	want, may := options.Users[i].Permissions, workerPermissions(protocol.DefaultFleet, protocol.DefaultPool)
	require.ElementsMatch(t, want.Publish.Allow, may.Publish.Allow)
	require.ElementsMatch(t, want.Subscribe.Allow, may.Subscribe.Allow)
	require.Nil(t, may.Response)
}
