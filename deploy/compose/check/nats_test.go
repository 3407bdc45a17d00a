package check

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// configuration lays the files out that the image has, as its stage copies them, and returns the
// path of nats.conf.
func configuration(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for _, instruction := range stages(t)["nats"].instructions {
		fields := strings.Fields(instruction)
		if fields[0] != "COPY" {
			continue
		}
		folder := filepath.Join(root, fields[len(fields)-1])
		require.NoError(t, os.MkdirAll(folder, 0o700))
		for _, source := range fields[1 : len(fields)-1] {
			content, err := os.ReadFile(filepath.Join("../../..", source))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(folder, filepath.Base(source)), content, 0o600))
		}
	}
	return filepath.Join(root, "etc/nats/nats.conf")
}

// TestNATS_ConfigurationWorks starts a real server with what the image has, moved to a free
// loopback port and a temporary directory.
func TestNATS_ConfigurationWorks(t *testing.T) {
	t.Setenv("FLEET_PASSWORD", "tf-0123456789abcdef")
	t.Setenv("WORKER_PASSWORD", "tf-fedcba9876543210")
	t.Setenv("READER_PASSWORD", "tf-0011223344556677")
	options, err := server.ProcessConfigFile(configuration(t))
	require.NoError(t, err)
	require.Equal(t, "/data", options.StoreDir)
	require.Equal(t, "127.0.0.1", options.HTTPHost, "monitoring is for the healthcheck only")
	require.Equal(t, 8222, options.HTTPPort)
	require.Equal(t, 4222, options.Port)

	broker := start(t, options)
	require.True(t, broker.ReadyForConnections(time.Minute))
	_, err = nats.Connect(broker.ClientURL())
	require.ErrorIs(t, err, nats.ErrAuthorization, "nobody gets in without a password")
	_, err = nats.Connect(broker.ClientURL(), nats.UserInfo("fleet", "tf-fedcba9876543210"))
	require.ErrorIs(t, err, nats.ErrAuthorization, "the workers' password is not the coordinators'")

	stream := jetstream.StreamConfig{Name: "TF_SESSIONS", Subjects: []string{"tf.event.>"}, Storage: jetstream.FileStorage}
	workers := user(t, broker, "worker", "tf-fedcba9876543210")
	_, err = workers.CreateStream(short(t), stream)
	require.Error(t, err, "workers make no stream")
	coordinators := user(t, broker, "fleet", "tf-0123456789abcdef")
	_, err = coordinators.CreateStream(t.Context(), stream)
	require.NoError(t, err)
	_, err = workers.Publish(short(t), "tf.event.session", nil)
	require.Error(t, err, "workers write no journal")
	_, err = coordinators.Publish(t.Context(), "tf.event.session", nil)
	require.NoError(t, err)
	_, err = workers.Stream(t.Context(), stream.Name)
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "workers are in another account")
	stream.Name, stream.Subjects = "TF_CALLS", []string{"tf.call.>"}
	_, err = user(t, broker, "fleet_default", "tf-0123456789abcdef").CreateStream(t.Context(), stream)
	require.NoError(t, err)
	_, err = workers.Stream(t.Context(), stream.Name)
	require.NoError(t, err, "coordinators are there, too")
}

// user connects as a user of a server.
func user(t *testing.T, broker *server.Server, name, password string) jetstream.JetStream {
	t.Helper()
	conn, err := nats.Connect(broker.ClientURL(), nats.UserInfo(name, password),
		nats.CustomInboxPrefix("_INBOX_"+name), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}

// short is for requests that get no answer: the server drops what a user may not send.
func short(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// TestNATS_RefusesToStartOpen: without a password there must be no server. (An empty
// one is refused by the compose file.)
func TestNATS_RefusesToStartOpen(t *testing.T) {
	for _, missing := range []string{"FLEET_PASSWORD", "WORKER_PASSWORD", "READER_PASSWORD"} {
		t.Run(missing, func(t *testing.T) {
			t.Setenv("FLEET_PASSWORD", "tf-secret") // so that they come back after the test
			t.Setenv("WORKER_PASSWORD", "tf-lesser")
			t.Setenv("READER_PASSWORD", "tf-least")
			require.NoError(t, os.Unsetenv(missing))
			_, err := server.ProcessConfigFile(configuration(t))
			require.ErrorContains(t, err, missing)
		})
	}
}
