package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
	write(t, filepath.Join(folder, "count.yaml"), "name: count\ndescription: Count.\nparameters: {type: object}\ncommand: [sh, -c, 'echo [; seq -s , 60000; echo ]']\npool: other\n")
	write(t, filepath.Join(dir, "f"), "one\n")
	model := script(t, say("Writing.", bash("c1", "echo two >> f"), use("c2", "count", object{})), say("Done."), say("", use("c3", "write", object{"path": "g", "content": "asked"})), say("Done."))
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
	called := execute(t, coordinator, launch{args: append([]string{"call", "--session", "s", "--tools", folder, "--min-level", "none", "count", "{}"}, a.flags...)})
	require.Equal(t, 0, called.code, called)
	require.NoError(t, json.Unmarshal([]byte(called.stdout), &outcome), called)
	require.Contains(t, a.do(t, "call", "--session", "s", "--min-level", "none", "read", `{"path": "result:`+outcome.CallID+`"}`), `"bytes":348895`, "the account of the other pool has kept it")

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
