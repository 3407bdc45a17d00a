package natsio_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
)

// TestConnect_TakesContextsOfTheNatsTool from where that tool keeps them.
func TestConnect_TakesContextsOfTheNatsTool(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	server := natsiotest.Serve(t, "listen: \"127.0.0.1:-1\"")
	require.True(t, server.ReadyForConnections(10*time.Second))
	content, err := json.Marshal(map[string]string{"url": server.ClientURL()})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "nats", "context"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nats", "context", "my fleet.json"), content, 0o600))
	nc, err := natsio.Connect(t.Context(), natsio.ContextScheme+"my fleet", natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	defer nc.Close()
	require.Equal(t, server.ClientURL(), nc.ConnectedUrl())
	require.Equal(t, "test", nc.Opts.Name)
	require.NotNil(t, nc.Opts.CustomDialer, "what a lost holder has not sent yet must not arrive later")
	_, err = natsio.Connect(t.Context(), natsio.ContextScheme+"other", natsio.ConnectOptions{})
	require.ErrorContains(t, err, `connect to NATS at nats-context://other: unknown context "other"`)
}
