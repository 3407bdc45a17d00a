package integration

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lease is short, so that what a killed process held comes back soon, and long enough not to end by
// itself on a busy machine.
const lease = 2 * time.Second * slowness

// broker is a NATS server that outlives every process of a test.
type broker struct {
	server *embedded.Server
	flags  []string // of every command that connects
	js     jetstream.JetStream
}

// newBroker starts a server on a free loopback port.
func newBroker(tb testing.TB) *broker {
	tb.Helper()
	server, err := embedded.Start(tb.Context(), embedded.Options{Data: tb.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(tb, err)
	tb.Cleanup(server.Close)
	token, err := os.ReadFile(server.CredentialFile())
	require.NoError(tb, err)
	creds := filepath.Join(tb.TempDir(), "token") // it is no copy of the token of a fleet that signs its calls
	require.NoError(tb, os.WriteFile(creds, token, 0o600))
	return &broker{server: server, flags: []string{"--nats", server.URL(), "--creds", creds}}
}

// jetStream is a connection of the test itself.
func (b *broker) jetStream(tb testing.TB) jetstream.JetStream {
	tb.Helper()
	if b.js != nil {
		return b.js
	}
	nc, err := nats.Connect("", append(b.server.Options(), nats.Timeout(patience))...)
	require.NoError(tb, err)
	tb.Cleanup(nc.Close)
	b.js, err = jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(tb, err)
	return b.js
}

// shortLeases makes the streams and gives coordinators short leases too; workers have a flag.
func (b *broker) shortLeases(tb testing.TB) {
	tb.Helper()
	js := b.jetStream(tb)
	require.NoError(tb, natsio.Ensure(tb.Context(), js, natsio.Topology{}))
	_, _, err := natsio.EnsurePool(tb.Context(), js, protocol.DefaultFleet, protocol.SessionPool, lease)
	require.NoError(tb, err)
}

// turnTakenOver reports whether a turn was started a second time.
func (b *broker) turnTakenOver(tb testing.TB) bool {
	tb.Helper()
	stream, err := b.jetStream(tb).Stream(tb.Context(), wire.CallsStream(protocol.DefaultFleet))
	require.NoError(tb, err)
	mark := wire.StartSubject(protocol.DefaultFleet, protocol.SessionPool, "*", "*", 2)
	info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(mark))
	require.NoError(tb, err)
	return len(info.State.Subjects) > 0
}

// member is a worker process.
type member struct {
	*process

	id string
}

// startWorkers starts workers that share a data directory and returns when all are
// ready, by their ids.
func startWorkers(tb testing.TB, n int, flags []string, env ...string) map[string]member {
	tb.Helper()
	args := append([]string{"--sandbox", "process", "--lease", lease.String(), "--data", filepath.Join(tb.TempDir(), "data")}, flags...)
	var processes []*process
	for range n {
		processes = append(processes, start(tb, worker, launch{args: args, env: env}))
	}
	members := map[string]member{}
	for _, p := range processes {
		id := p.waitFor(tb, `worker: (\S+) takes calls of pool default in fleet tf: 4 slots, sandbox process \(level none\)`)[1]
		members[id] = member{process: p, id: id}
	}
	require.Len(tb, members, n, "ids differ")
	return members
}

// startServe starts a coordinator that serves sessions and returns when it is ready.
func startServe(tb testing.TB, model string, flags ...string) *process {
	tb.Helper()
	p := start(tb, coordinator, launch{args: append([]string{"serve", "--model", model}, flags...)})
	p.waitFor(tb, `coordinator: serving sessions of fleet tf with model script:`)
	return p
}

// stop ends a process in order, as SIGTERM does.
func (p *process) stop(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGTERM)
	require.Equal(tb, 0, p.wait(tb), p)
}
