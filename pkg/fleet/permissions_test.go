package fleet_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// logged is what was logged; it is safe for concurrent use.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// permitted starts a server with the account of deploy/nats, and returns the URL of its user.
func permitted(t *testing.T) string {
	t.Helper()
	account, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", "accounts.conf"))
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "nats.conf")
	text := "listen: \"127.0.0.1:-1\"\njetstream { store_dir: \"" + dir + "\" }\n" + strings.ReplaceAll(string(account), "$FLEET_PASSWORD", "secret")
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	options, err := server.ProcessConfigFile(config)
	require.NoError(t, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(20*time.Second))
	return "nats://fleet:secret@" + s.Addr().String()
}

// TestDeploy_PermissionsAreEnough: what deploy/nats permits is all that a fleet does.
func TestDeploy_PermissionsAreEnough(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // what is not permitted is not answered
	defer cancel()
	log := &logged{}
	f, err := fleet.Connect(ctx, &fleet.Options{URL: permitted(t), Logger: slog.New(slog.NewTextHandler(log, nil))})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	require.NoError(t, f.StartWorker(ctx, &fleet.WorkerOptions{Sandbox: "process"}))
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	session := protocol.NewSessionID()
	for tool, arguments := range map[string]string{
		"bash":  `{"command":"seq 1 60000"}`,
		"write": `{"path":"large","content":"` + strings.Repeat("x", 3<<20) + `"}`,
	} {
		outcome, err := f.Call(ctx, table, session, tool, arguments, nil)
		require.NoError(t, err, log)
		require.Equal(t, protocol.StatusOK, outcome.Status, log)
	}
	runner, err := f.Runner(&replies{[]string{`{"path":"large"}`}}, table, nil)
	require.NoError(t, err)
	result, err := runner.Run(ctx, session, loop.Input{Text: "go"})
	require.NoError(t, err, log)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome, log)
	require.NoError(t, f.DeleteSession(ctx, session, false), log)
	require.NotContains(t, log.String(), "violation")
}
