package check

import (
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// TestNATS_ConfigurationWorks starts a real server with nats.conf, moved to a free
// loopback port and a temporary directory.
func TestNATS_ConfigurationWorks(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "tf-0123456789abcdef")
	options, err := server.ProcessConfigFile("../nats.conf")
	require.NoError(t, err)
	require.Equal(t, "/data", options.StoreDir)
	require.Equal(t, "127.0.0.1", options.HTTPHost, "monitoring is for the healthcheck only")
	require.Equal(t, 8222, options.HTTPPort)
	require.Equal(t, 4222, options.Port)

	options.Host, options.Port, options.HTTPPort = "127.0.0.1", server.RANDOM_PORT, 0
	options.StoreDir, options.NoSigs, options.NoLog = t.TempDir(), true, true
	broker, err := server.NewServer(options)
	require.NoError(t, err)
	broker.Start()
	t.Cleanup(func() { broker.Shutdown(); broker.WaitForShutdown() })
	require.True(t, broker.ReadyForConnections(10*time.Second))

	_, err = nats.Connect(broker.ClientURL())
	require.ErrorIs(t, err, nats.ErrAuthorization, "nobody gets in without the password")
	_, err = nats.Connect(broker.ClientURL(), nats.UserInfo("fleet", "tf-wrong"))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	conn, err := nats.Connect(broker.ClientURL(), nats.UserInfo("fleet", "tf-0123456789abcdef"))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "TF_TEST", Storage: jetstream.FileStorage})
	require.NoError(t, err)
}

// TestNATS_RefusesToStartOpen: without a password there must be no server. (An empty
// one is refused by the compose file.)
func TestNATS_RefusesToStartOpen(t *testing.T) {
	t.Setenv("NATS_PASSWORD", "") // so that it comes back after the test
	require.NoError(t, os.Unsetenv("NATS_PASSWORD"))
	_, err := server.ProcessConfigFile("../nats.conf")
	require.ErrorContains(t, err, "NATS_PASSWORD")
}
