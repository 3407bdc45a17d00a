package integration

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/embedded"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/loop"
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

// TestJoin_WithinASecond: a worker that is started with an account of its own and keys for calls
// runs its first call within a second, on a machine that has nothing else to do: what it waits for
// a processor, as a program just before did, is left out, and the fastest of some starts counts.
func TestJoin_WithinASecond(t *testing.T) {
	t.Parallel()
	const starts = 5
	a, keys := newApart(t), t.TempDir()
	signer, err := signing.Make(keys)
	require.NoError(t, err)
	js := a.pool(t)
	require.NoError(t, natsio.MakePool(t.Context(), js, protocol.DefaultFleet, protocol.DefaultPool))
	d, err := calls.New(t.Context(), js.Conn(), protocol.DefaultFleet, &calls.Options{Signer: signer})
	require.NoError(t, err)
	t.Cleanup(d.Close)

	var took []time.Duration
	var answered time.Duration
	for range starts {
		call := protocol.Call{
			ID: wire.RandomCallID(), SessionID: protocol.NewSessionID(), Pool: protocol.DefaultPool, Delivery: protocol.Idempotent,
			Resources: []protocol.Use{{Key: protocol.ResourceKey("sandbox/" + protocol.NewSessionID()), Access: protocol.Exclusive}},
			IssuedAt:  time.Now(), Payload: protocol.CommandRun{Argv: []string{"true"}},
		}
		slow := delayed(t)
		began := time.Now()
		p := start(t, worker, launch{
			args: []string{"--sandbox", "process", "--data", t.TempDir(), "--nats", a.url("worker"), "--call-keys", filepath.Join(keys, signing.PublicFile)},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.NoError(t, d.Dispatch(ctx, []protocol.Call{call}, func(u loop.Update) {
			if u.State == loop.StateDone {
				answered = time.Since(began)
				require.Equal(t, protocol.StatusOK, u.Result.Status, u.Result)
			}
		}))
		cancel()
		p.stop(t)
		took = append(took, answered-time.Duration(float64(computed(p))*(slow-1)))
		t.Log(answered, slow, computed(p))
	}
	require.Less(t, slices.Min(took), time.Second)
}

// delayed is how many times longer a program takes than it computes.
func delayed(t *testing.T) float64 {
	t.Helper()
	began := time.Now()
	p := start(t, worker, launch{args: []string{"--version"}})
	require.Equal(t, 0, p.wait(t))
	return max(1, float64(time.Since(began))/float64(computed(p)))
}

// computed is how much of a processor's time an ended process has had.
func computed(p *process) time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// apart is a server with the accounts of deploy/nats.
type apart struct {
	server *server.Server
	flags  []string // of coordinators
}

func newApart(t *testing.T) *apart {
	t.Helper()
	a := &apart{server: natsiotest.Serve(t, natsiotest.Alone(t, "", natsiotest.Accounts(t)))}
	require.True(t, a.server.ReadyForConnections(patience))
	a.flags = []string{"--nats", a.url("fleet"), "--pool-nats", "default=" + a.url("fleet_default")}
	return a
}

// pool makes the fleet where the pool has its account, as a coordinator there.
func (a *apart) pool(t *testing.T) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(a.url("fleet_default"), nats.Timeout(patience))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(patience))
	require.NoError(t, err)
	require.NoError(t, natsio.Ensure(t.Context(), js, natsio.Topology{}))
	return js
}

func (a *apart) url(user string) string {
	return "nats://" + user + ":secret@" + a.server.Addr().String()
}

// do runs a command of a coordinator, which has to end well, and returns what it prints.
func (a *apart) do(t *testing.T, command string, args ...string) string {
	t.Helper()
	got := execute(t, coordinator, launch{args: append(append(strings.Fields(command), a.flags...), args...)})
	require.Equal(t, 0, got.code, "%s %v %s", command, args, got)
	return got.stdout + got.stderr
}

// TestPools_AnAccountOfTheirOwn: everything works on a pool whose workers reach nothing else of the
// fleet, beside a pool of another account.
func TestPools_AnAccountOfTheirOwn(t *testing.T) {
	t.Parallel()
	a, folder, dir := newApart(t), t.TempDir(), t.TempDir()
	write(t, filepath.Join(folder, "count.yaml"),
		"name: count\ndescription: Count.\nparameters: {type: object}\ncommand: [sh, -c, 'echo [; seq -s , 60000; echo ]']\npool: other\n")
	write(t, filepath.Join(dir, "f"), "one\n")
	model := script(t, say("Writing.", bash("c1", "echo two >> f"), use("c2", "count", object{})), say("Done."),
		say("", use("c3", "write", object{"path": "g", "content": "asked"})), say("Done."))
	_, _, err := natsio.EnsurePool(t.Context(), a.pool(t), protocol.DefaultFleet, protocol.DefaultPool, lease) // as startWorkers wants it
	require.NoError(t, err)
	startServe(t, model, append([]string{"--pools", "default,other", "--tools", folder}, a.flags...)...)
	start(t, worker, launch{args: []string{"--sandbox", "process", "--data", t.TempDir(), "--tools", folder, "--pool", "other", "--nats", a.url("fleet")}})
	lost := startWorkers(t, 1, []string{"--nats", a.url("worker")})

	require.Contains(t, a.do(t, "workers"), "process")
	require.Contains(t, a.do(t, "submit", "--session", "s", "--workspace", dir, "--min-level", "none", "do it"), "Done.")
	requireFile(t, filepath.Join(dir, "f"), "one\ntwo\n")
	require.Equal(t, "one\ntwo\n", a.do(t, "session files", "s", "f"))
	require.Contains(t, a.do(t, "session log", "s"), "Writing.")
	require.Regexp(t, `"results":[1-9]`, a.do(t, "session show", "--json", "s"))
	for _, m := range lost { // somebody else goes on, with what it has left
		m.kill(t)
	}
	heirs := startWorkers(t, 1, []string{"--nats", a.url("worker")})
	asked := start(t, coordinator, launch{args: append([]string{"submit", "--session", "s", "--min-level", "none", "--ask-for", "write", "go on"}, a.flags...)})
	question := asked.waitFor(t, `refuse it with --deny\): coordinator approve --nats \S+ --pool-nats \S+ (\S+) (\S+)\n`)
	a.do(t, "approve", question[1], question[2])
	require.Equal(t, 0, asked.wait(t), asked)
	require.Equal(t, "asked", a.do(t, "session files", "s", "g"))

	var outcome struct {
		CallID string `json:"call_id"`
	}
	called := succeed(t, coordinator, launch{args: append([]string{"call", "--session", "s", "--tools", folder, "--min-level", "none", "count", "{}"}, a.flags...)})
	require.NoError(t, json.Unmarshal([]byte(called.stdout), &outcome), called)
	require.Contains(t,
		a.do(t, "call", "--session", "s", "--min-level", "none", "read", `{"path": "result:`+outcome.CallID+`"}`),
		`"bytes":348895`, "the account of the other pool has kept it")

	require.Eventually(t, func() bool { // results of a fleet, and what it keeps, go with their session
		got := execute(t, coordinator, launch{args: append([]string{"session", "rm", "s"}, a.flags...)})
		return got.code == 0
	}, patience, time.Second)
	gone := execute(t, coordinator, launch{args: append(append([]string{"session", "show"}, a.flags...), "s")})
	require.Contains(t, gone.stderr, "no such session")
	for _, m := range heirs {
		m.stop(t)
	}
}

// TestPools_WrongFlags: what is wrong with the flags is said before anything is connected.
func TestPools_WrongFlags(t *testing.T) {
	t.Parallel()
	model := script(t, say("Done."))
	for want, flags := range map[string][]string{
		`--pool-nats: (?s:.*)"No"`:                        {"--nats", "nats://127.0.0.1:1", "--pool-nats", "No=nats://127.0.0.1:1"},
		`--pool-nats session: this pool is that of turns`: {"--nats", "nats://127.0.0.1:1", "--pool-nats", "session=nats://127.0.0.1:1"},
		`--pool-nats gpu: connect to NATS at "http`:       {"--nats", "nats://127.0.0.1:1", "--pool-nats", "gpu=http://127.0.0.1:1"},
		`--pool-nats gpu: the URL`:                        {"--nats", "nats://127.0.0.1:1", "--pool-nats", "gpu="},
		`--pool-nats gpu: needs --nats`:                   {"--pool-nats", "gpu=nats://127.0.0.1:1"},
		`--pool-creds gpu: needs --pool-nat`:              {"--nats", "nats://127.0.0.1:1", "--pool-creds", "gpu=x"},
		`--pool-creds gpu=/no: no such file`:              {"--nats", "nats://127.0.0.1:1", "--pool-nats", "gpu=nats://127.0.0.1:1", "--pool-creds", "gpu=/no"},
	} {
		got := execute(t, coordinator, launch{args: append([]string{"run", "--model", model}, append(flags, "go")...)})
		require.Equal(t, 2, got.code, got)
		require.Regexp(t, want, got.stderr)
	}
}
