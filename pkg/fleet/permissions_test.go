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
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/driver"
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

// The files of deploy/nats with accounts, for any number of servers and for one.
const accountsFile, apartFile = "accounts.conf", "apart.conf"

// permitted starts a server with a file of deploy/nats without some of what that permits, and
// returns the URLs of its users.
func permitted(t *testing.T, file string, without ...string) (coordinator, worker string) {
	t.Helper()
	account, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", file))
	require.NoError(t, err)
	dir := t.TempDir()
	config := filepath.Join(dir, "nats.conf")
	text := strings.NewReplacer("$FLEET_PASSWORD", "secret", "$WORKER_PASSWORD", "secret").Replace(string(account))
	for _, subject := range without {
		require.Contains(t, text, `"`+subject+`"`)
		text = strings.ReplaceAll(text, `"`+subject+`"`, `"elsewhere"`)
	}
	text = "listen: \"127.0.0.1:-1\"\njetstream { store_dir: \"" + dir + "\" }\n" + text
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	options, err := server.ProcessConfigFile(config)
	require.NoError(t, err)
	options.NoSigs, options.NoLog = true, true
	s, err := server.NewServer(options)
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	return "nats://fleet:secret@" + s.Addr().String(), "nats://worker:secret@" + s.Addr().String()
}

// TestDeploy_PermissionsAreEnough: what deploy/nats permits is all that a fleet does.
func TestDeploy_PermissionsAreEnough(t *testing.T) {
	t.Parallel()
	for _, file := range []string{accountsFile, apartFile} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			permissionsAreEnough(t, file)
		})
	}
}

func permissionsAreEnough(t *testing.T, file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // what is not permitted is not answered
	defer cancel()
	log := &logged{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	coordinator, workers := permitted(t, file)
	f, err := fleet.Connect(ctx, &fleet.Options{URL: coordinator, Logger: logger})
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	makePool(t, coordinator)
	defer startWorker(t, workers, logger)()
	table, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	session := protocol.NewSessionID()
	for tool, arguments := range map[string]string{
		"bash":  `{"command":"seq 1 60000"}`,
		"write": `{"path":"large","content":"` + strings.Repeat("x", 3<<20) + `"}`,
	} {
		outcome, err := f.Call(ctx, table, session, tool, arguments, &loop.SingleOptions{MinLevel: "none"})
		require.NoError(t, err, log)
		require.Equal(t, protocol.StatusOK, outcome.Status, log)
	}
	runner, err := f.Runner(&replies{[]string{`{"path":"large"}`}}, table, &loop.Options{MinLevel: "none"})
	require.NoError(t, err)
	result, err := runner.Run(ctx, session, loop.Input{Text: "go"})
	require.NoError(t, err, log)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome, log)
	require.NoError(t, f.DeleteSession(ctx, session, false), log)
	require.NotContains(t, log.String(), "violation")
}

// TestDeploy_QuestionsAndAnswers: what a call asks reaches whoever follows it, and the answer the
// worker, who confirms it.
func TestDeploy_QuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	for _, file := range []string{accountsFile, apartFile} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			h := newHostile(t, file)
			asked, err := h.owner.SubscribeSync(fleetName.QuestionSubject(protocol.DefaultPool, "s", "c"))
			require.NoError(t, err)
			require.NoError(t, h.owner.FlushTimeout(time.Minute))
			answer := fleetName.AnswerSubject(protocol.DefaultPool, "s", "c")
			_, err = h.worker.Subscribe(answer, func(m *nats.Msg) { _ = m.Respond([]byte(protocol.AnswerTaken)) })
			require.NoError(t, err)
			require.NoError(t, h.worker.Publish(asked.Subject, []byte("who is it?")))
			question, err := asked.NextMsg(time.Minute)
			require.NoError(t, err)
			require.Equal(t, "who is it?", string(question.Data))
			reply, err := h.owner.Request(answer, []byte("me"), time.Minute)
			require.NoError(t, err)
			require.Equal(t, protocol.AnswerTaken, string(reply.Data))
		})
	}
}

// makePool makes the pool of workers that may not, as coordinator serve --pools does.
func makePool(t *testing.T, url string) {
	t.Helper()
	nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "serve"})
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, natsio.MakePool(t.Context(), js, protocol.DefaultFleet, protocol.DefaultPool))
}

// startWorker runs a worker that has a connection of its own, and returns what ends it.
func startWorker(t *testing.T, url string, logger *slog.Logger) (stop func()) {
	t.Helper()
	nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "worker", Logger: logger})
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	opened, caps, err := driver.Open(t.Context(), "process", &driver.Options{Logger: logger, Data: t.TempDir()})
	require.NoError(t, err)
	w, err := worker.New(t.Context(), nc, worker.Options{Driver: opened, Caps: caps, Data: t.TempDir(), Logger: logger})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, ctx) }()
	return func() {
		cancel()
		require.NoError(t, <-done)
		nc.Close()
	}
}

// TestDeploy_WorkersHaveTheirOwnPool: the user of workers gets calls of no other pool, and makes no
// streams.
func TestDeploy_WorkersHaveTheirOwnPool(t *testing.T) {
	t.Parallel()
	coordinator, workers := permitted(t, accountsFile)
	connect := func(url string) jetstream.JetStream {
		nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "test"})
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		return js
	}
	theirs := connect(workers)
	err := natsio.Ensure(t.Context(), theirs, natsio.Topology{})
	require.ErrorIs(t, err, natsio.ErrRights)
	require.ErrorContains(t, err, "$JS.API.STREAM.CREATE.TF_CALLS")
	require.NoError(t, natsio.Ensure(t.Context(), connect(coordinator), natsio.Topology{}))
	require.NoError(t, natsio.Ensure(t.Context(), theirs, natsio.Topology{}))
	_, _, err = natsio.EnsurePool(t.Context(), theirs, protocol.DefaultFleet, protocol.SessionPool, 0)
	require.ErrorIs(t, err, natsio.ErrRights)
	require.ErrorContains(t, err, "tf.ready.session.")
	require.ErrorIs(t, natsio.CheckRights(t.Context(), theirs.Conn(), natsio.SessionRights(protocol.DefaultFleet)), natsio.ErrRights)
}

// TestDeploy_MissingRightsAreNamedAtOnce: with less than what deploy/nats permits a process says
// what it lacks.
func TestDeploy_MissingRightsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	for _, without := range []string{"tf.>", "$JS.API.>", "_INBOX_fleet.>", "$O.TF_KEPT.>"} {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			coordinator, _ := permitted(t, accountsFile, without)
			_, err := fleet.Connect(t.Context(), &fleet.Options{URL: coordinator})
			require.ErrorIs(t, err, natsio.ErrRights)
			require.ErrorContains(t, err, strings.TrimSuffix(without, ">"))
		})
	}
}
