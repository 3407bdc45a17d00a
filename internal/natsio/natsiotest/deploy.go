package natsiotest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// Accounts is deploy/nats/accounts.conf with the password "secret" for every user, for packages two
// folders below that of the module.
func Accounts(tb testing.TB) string {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", "accounts.conf"))
	require.NoError(tb, err)
	return strings.NewReplacer("$FLEET_PASSWORD", "secret", "$WORKER_PASSWORD", "secret").Replace(string(text))
}

// Alone is the configuration of one server on a free loopback port, with what JetStream has beside
// its directory, as in "max_file_store: 1GB", and accounts.
func Alone(tb testing.TB, jetStream, accounts string) string {
	tb.Helper()
	return "listen: \"127.0.0.1:-1\"\njetstream { store_dir: \"" + tb.TempDir() + "\"\n" + jetStream + " }\n" + accounts
}

// Serve starts a server with a configuration; one that waits for others is not ready when it
// returns.
func Serve(tb testing.TB, text string) *server.Server {
	tb.Helper()
	config := filepath.Join(tb.TempDir(), "nats.conf")
	require.NoError(tb, os.WriteFile(config, []byte(text), 0o600))
	options, err := server.ProcessConfigFile(config)
	require.NoError(tb, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(tb, err)
	s.Start()
	tb.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	return s
}
