package fleet_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
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

// The files of deploy/nats: the accounts, and one of three servers with TLS, which has them.
const accountsFile, serverFile = "accounts.conf", "nats.conf"

// place is where servers are, and who may be which user there.
type place struct {
	coordinator, worker string // URLs
	pool                string // that of a coordinator in the account of the pool
	reader, poolReader  string // those of users that only read
	ca                  string // file of the authority; "" without TLS
	replicas            int
}

// options are those of a coordinator.
func (p place) options(logger *slog.Logger) fleet.Options {
	return fleet.Options{
		URL: p.coordinator, Pools: map[protocol.Pool]fleet.Server{protocol.DefaultPool: {URL: p.pool}},
		TLSCA: p.ca, Storage: fleet.Storage{Replicas: p.replicas}, Logger: logger,
	}
}

func (p place) connect(t *testing.T, url string, logger *slog.Logger) *nats.Conn {
	t.Helper()
	nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "test", TLS: natsio.TLS{CA: p.ca}, Logger: logger})
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// deployed starts what a file of deploy/nats is for.
func deployed(t *testing.T, file string) place {
	t.Helper()
	if file == accountsFile {
		return permitted(t, "")
	}
	const servers = 3
	ca, ports := natsiotest.NewAuthority(t), natsiotest.FreePorts(t, 3*servers)
	own := ca.Leaf(time.Now().Add(time.Hour))
	configuration, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", serverFile))
	require.NoError(t, err)
	p := place{ca: ca.Cert, replicas: servers}
	for i := range servers {
		local := func(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }
		routes := ports[2*servers:]
		text := strings.NewReplacer(
			"server_name: nats-1", fmt.Sprintf("server_name: nats-%d", i+1), "0.0.0.0:4222", local(ports[i]), "127.0.0.1:8222", local(ports[servers+i]),
			"/var/lib/nats", strconv.Quote(t.TempDir()), "/etc/nats/server.pem", strconv.Quote(own.Cert), "/etc/nats/server-key.pem", strconv.Quote(own.Key),
			"/etc/nats/ca.pem", strconv.Quote(ca.Cert),
			"0.0.0.0:6222", local(routes[i]), "nats-1:6222", local(routes[0]), "nats-2:6222", local(routes[1]), "nats-3:6222", local(routes[2]),
			"include accounts.conf", natsiotest.Accounts(t),
		).Replace(string(configuration))
		natsiotest.Serve(t, text)
		at := place{}.at("tls", local(ports[i]))
		p.coordinator, p.worker, p.pool = p.coordinator+","+at.coordinator, p.worker+","+at.worker, p.pool+","+at.pool
	}
	p.coordinator, p.worker, p.pool = p.coordinator[1:], p.worker[1:], p.pool[1:]
	return p
}

// at sets the URLs of a server.
func (p place) at(scheme, address string) place {
	p.reader, p.poolReader = scheme+"://reader:secret@"+address, scheme+"://reader_default:secret@"+address
	p.coordinator, p.pool, p.worker = scheme+"://fleet:secret@"+address, scheme+"://fleet_default:secret@"+address, scheme+"://worker:secret@"+address
	return p
}

// permitted starts a server with the accounts, and with what JetStream has there.
func permitted(t *testing.T, jetStream string) place {
	t.Helper()
	s := natsiotest.Serve(t, natsiotest.Alone(t, jetStream, natsiotest.Accounts(t)))
	require.True(t, s.ReadyForConnections(time.Minute))
	return place{replicas: 1}.at("nats", s.Addr().String())
}

// TestDeploy_PermissionsAreEnough: what deploy/nats permits is all that a fleet does.
func TestDeploy_PermissionsAreEnough(t *testing.T) {
	t.Parallel()
	for _, file := range []string{accountsFile, serverFile} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			permissionsAreEnough(t, deployed(t, file))
		})
	}
}

func permissionsAreEnough(t *testing.T, p place) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // what is not permitted is not answered
	defer cancel()
	log := &logged{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	makePool(t, p)
	f, err := fleet.Connect(ctx, p.options(logger))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	defer startWorker(t, p, logger)()
	table := table(t)
	session := protocol.NewSessionID()
	for tool, arguments := range map[string]string{
		"bash":  `{"command":"seq 1 60000"}`,
		"write": `{"path":"large","content":"` + strings.Repeat("x", 3<<20) + `"}`,
	} {
		outcome, err := f.Call(ctx, fleet.Call{Table: table, Session: session, Tool: tool, Arguments: arguments, MinLevel: "none"})
		require.NoError(t, err, log)
		require.Equal(t, protocol.StatusOK, outcome.Status, log)
	}
	runner, err := f.Runner(&replies{[]string{`{"path":"large"}`}}, table, &loop.Options{MinLevel: "none"})
	require.NoError(t, err)
	result, err := runner.Run(ctx, session, loop.Input{Text: "go"})
	require.NoError(t, err, log)
	require.Equal(t, loop.OutcomeAnswered, result.Outcome, log)
	_, err = f.Sessions("").Remove(ctx, session, false)
	require.NoError(t, err, log)
	require.NotContains(t, log.String(), "violation")
}

// TestDeploy_QuestionsAndAnswers: what a call asks reaches whoever follows it, and the answer the
// worker, who confirms it.
func TestDeploy_QuestionsAndAnswers(t *testing.T) {
	t.Parallel()
	h := newHostile(t, accountsFile)
	asked, err := h.poolOwner.SubscribeSync(wire.QuestionSubject(fleetName, protocol.DefaultPool, "s", "c"))
	require.NoError(t, err)
	require.NoError(t, h.poolOwner.FlushTimeout(time.Minute))
	answer := wire.AnswerSubject(fleetName, protocol.DefaultPool, "s", "c")
	_, err = h.worker.Subscribe(answer, func(m *nats.Msg) { _ = m.Respond([]byte(wire.AnswerTaken)) })
	require.NoError(t, err)
	require.NoError(t, h.worker.Publish(asked.Subject, []byte("who is it?")))
	question, err := asked.NextMsg(time.Minute)
	require.NoError(t, err)
	require.Equal(t, "who is it?", string(question.Data))
	reply, err := h.poolOwner.Request(answer, []byte("me"), time.Minute)
	require.NoError(t, err)
	require.Equal(t, wire.AnswerTaken, string(reply.Data))
}

// TestDeploy_AServersAnswerIsNoPersons: a worker has the server publish what it has stored where
// another worker waits for the answer of a person. It counts for nothing.
func TestDeploy_AServersAnswerIsNoPersons(t *testing.T) {
	t.Parallel()
	h := newHostile(t, accountsFile)
	waits := h.place.connect(t, h.place.worker, nil)
	answer := wire.AnswerSubject(fleetName, protocol.DefaultPool, "s", "c")
	answers, err := waits.SubscribeSync(answer)
	require.NoError(t, err)
	require.NoError(t, waits.FlushTimeout(time.Minute))
	calls := wire.CallsStream(fleetName)
	for _, request := range []string{"$JS.API.DIRECT.GET." + calls, "$JS.API.STREAM.MSG.GET." + calls, "$JS.API.CONSUMER.MSG.NEXT." + calls + ".ready_default"} {
		require.NoError(t, h.worker.PublishRequest(request, answer, []byte(`{"seq":1}`)))
		forged, err := answers.NextMsg(time.Minute)
		require.NoError(t, err, request)
		require.False(t, natsio.IsRequest(forged), request)
	}
	go func() { _, _ = h.poolOwner.Request(answer, nil, time.Minute) }() // of a coordinator
	asked, err := answers.NextMsg(time.Minute)
	require.NoError(t, err)
	require.True(t, natsio.IsRequest(asked))
	require.NoError(t, asked.Respond(nil))
}

// makePool makes a fleet and the pool of workers that may not, as coordinator serve --pools does.
func makePool(t *testing.T, p place) {
	t.Helper()
	js, err := jetstream.New(p.connect(t, p.pool, nil), jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // servers that have just found each other refuse it
		require.NoError(c, natsio.Ensure(t.Context(), js, natsio.Topology{Storage: natsio.Storage{Replicas: p.replicas}}))
		require.NoError(c, natsio.MakePool(t.Context(), js, protocol.DefaultFleet, protocol.DefaultPool))
	}, 3*time.Minute, 100*time.Millisecond)
}

// startWorker runs a worker that has a connection of its own, and returns what ends it.
func startWorker(t *testing.T, p place, logger *slog.Logger) (stop func()) {
	t.Helper()
	nc := p.connect(t, p.worker, logger)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{Storage: natsio.Storage{Replicas: p.replicas}}))
	opened, caps, err := drivers.Open(t.Context(), "process", &drivers.Options{Logger: logger, Data: t.TempDir()})
	require.NoError(t, err)
	w, err := worker.New(t.Context(), nc, worker.Options{Options: lane.Options{Logger: logger}, Settings: sandboxes.Settings{Driver: opened, Caps: caps}, Data: t.TempDir()})
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
	p := permitted(t, "")
	connect := func(url string) jetstream.JetStream {
		nc, err := natsio.Connect(t.Context(), url, natsio.ConnectOptions{Name: "test"})
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(time.Minute))
		require.NoError(t, err)
		return js
	}
	theirs := connect(p.worker)
	err := natsio.Ensure(t.Context(), theirs, natsio.Topology{})
	require.ErrorIs(t, err, natsio.ErrRights)
	require.ErrorContains(t, err, "$JS.API.STREAM.CREATE.TF_CALLS")
	require.NoError(t, natsio.Ensure(t.Context(), connect(p.pool), natsio.Topology{}))
	require.NoError(t, natsio.Ensure(t.Context(), theirs, natsio.Topology{}))
	_, _, err = natsio.EnsurePool(t.Context(), theirs, protocol.DefaultFleet, protocol.SessionPool, 0)
	require.ErrorIs(t, err, natsio.ErrRights)
	require.ErrorContains(t, err, "tf.ready.session.")
	require.ErrorIs(t, natsio.CheckRights(t.Context(), theirs.Conn(), natsio.SessionRights(protocol.DefaultFleet)...), natsio.ErrRights)
}

// TestDeploy_AWorkerWithoutRightsOfLimitsNamesThem: a NATS user of before limits and tenants.
func TestDeploy_AWorkerWithoutRightsOfLimitsNamesThem(t *testing.T) {
	t.Parallel()
	imports, users, found := strings.Cut(natsiotest.Accounts(t), "user: worker\n")
	require.True(t, found)
	users, readers, found := strings.Cut(users, "\n  READERS {")
	require.True(t, found)
	users = strings.NewReplacer(`"$JS.API.DIRECT.GET.KV_TF_LIMITS.>"`, "", `"$KV.TF_LIMITS.>", `, "", `"tf.ready.default.*.*.*", `, "").Replace(users)
	accounts := imports + "user: worker\n" + users + "\n  READERS {" + readers
	s := natsiotest.Serve(t, natsiotest.Alone(t, "", accounts))
	require.True(t, s.ReadyForConnections(time.Minute))
	p := place{replicas: 1}.at("nats", s.Addr().String())
	makePool(t, p)
	nc, err := natsio.Connect(t.Context(), p.worker, natsio.ConnectOptions{Name: "test"})
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, _, err = natsio.EnsurePool(t.Context(), js, protocol.DefaultFleet, protocol.DefaultPool, 0)
	require.ErrorIs(t, err, natsio.ErrRights)
	for _, right := range []string{
		"publish on $JS.API.DIRECT.GET.KV_TF_LIMITS.$KV.TF_LIMITS.rules", "subscribe to $KV.TF_LIMITS.rules", "subscribe to tf.ready.default.*.*.*",
	} {
		require.ErrorContains(t, err, right)
	}
}

// TestDeploy_MissingRightsAreNamedAtOnce: with less than what a fleet does a process says what it
// lacks.
func TestDeploy_MissingRightsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	all := []string{"tf.>", "$JS.API.>", "$KV.TF_PLACES.>", "$O.>", "_INBOX_fleet.>"}
	for _, without := range []string{"tf.>", "$JS.API.>", "_INBOX_fleet.>", "$O.>"} {
		t.Run(without, func(t *testing.T) {
			t.Parallel()
			may := strings.ReplaceAll(fmt.Sprintf("%q", all), strconv.Quote(without), `"elsewhere"`)
			s := natsiotest.Serve(t, natsiotest.Alone(t, "", "accounts { FLEET { jetstream: enabled, users: [{ user: fleet, password: secret, permissions: { publish: "+
				strings.ReplaceAll(may, `" "`, `", "`)+", subscribe: "+strings.ReplaceAll(may, `" "`, `", "`)+" } }] } }\n"))
			require.True(t, s.ReadyForConnections(time.Minute))
			_, err := fleet.Connect(t.Context(), fleet.Options{URL: place{}.at("nats", s.Addr().String()).coordinator})
			require.ErrorIs(t, err, natsio.ErrRights)
			require.ErrorContains(t, err, strings.TrimSuffix(without, ">"))
		})
	}
}
