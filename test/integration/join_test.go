package integration

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/join"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// joinable is a coordinator that other machines join.
type joinable struct {
	*process

	data  string
	token string   // of the first worker
	flags []string // of commands of its machine
}

func startJoinable(t *testing.T, data string) joinable {
	t.Helper()
	j := joinable{data: data}
	j.process = startServe(t, script(t, say("Done.")), "--listen", "127.0.0.1:0", "--listen-tls", "always", "--data", data)
	reach := j.waitFor(t, `reach it with: --nats (tls://127.0.0.1:\d+) --creds (\S+) --tls-ca (\S+)\n`)
	j.flags = []string{"--nats", reach[1], "--creds", reach[2], "--tls-ca", reach[3]}
	j.token = j.waitFor(t, `\nworker --join (\S+)`)[1]
	return j
}

// tokens runs coordinator join-token, and returns its output.
func (j joinable) tokens(t *testing.T, verb string, args ...string) string {
	t.Helper()
	return succeed(t, coordinator, launch{args: append([]string{"join-token", verb, "--data", j.data}, args...)}).stdout
}

// listed returns the tokens.
func (j joinable) listed(t *testing.T) (list []join.Entry) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(j.tokens(t, "ls", "--json")), &list))
	return list
}

// joins starts a worker with a token, and returns when it takes calls of a pool.
func joins(t *testing.T, token, pool string) *process {
	t.Helper()
	p := start(t, worker, launch{args: []string{"--sandbox", "process", "--data", filepath.Join(t.TempDir(), "data")}, env: []string{"TOOLFLEET_JOIN=" + token}})
	p.waitFor(t, `worker: \S+ takes calls of pool `+pool+` in fleet tf`)
	return p
}

// TestJoin_ByOneLine: the line that coordinator serve prints is all that a worker needs, and calls
// run there; a removed token ends that, and the worker cannot return. Another coordinator joins by
// a token of its own. All of it is there after a restart.
func TestJoin_ByOneLine(t *testing.T) {
	t.Parallel()
	j := startJoinable(t, filepath.Join(t.TempDir(), "data"))
	first := joins(t, j.token, "default")
	calls := func(flags ...string) {
		t.Helper()
		called := succeed(t, coordinator, launch{args: append([]string{"call", "bash", `{"command":"echo here"}`}, flags...)})
		require.Contains(t, called.stdout, `"stdout":"here\n"`)
	}
	calls(j.flags...)

	config := t.TempDir()
	context := func(args ...string) launch { return launch{args: args, env: []string{"XDG_CONFIG_HOME=" + config}} }
	far := j.tokens(t, "add", "--role", "coordinator")
	succeed(t, coordinator, context("context", "add", "far", "--join", far))
	called := succeed(t, coordinator, context("call", "--context", "far", "bash", `{"command":"echo far"}`))
	require.Contains(t, called.stdout, `"stdout":"far\n"`, "its calls are signed")
	require.NotContains(t, succeed(t, coordinator, context("context", "ls")).stdout, "coordinator:", "the secret is not shown")

	gpu := j.tokens(t, "add", "--pool", "gpu", "--note", "the second")
	joins(t, gpu, "gpu")
	require.Eventually(t, func() bool { seen := j.listed(t)[2].Seen; return time.Since(seen) < time.Minute }, patience, 100*time.Millisecond, "it is seen")
	list := j.listed(t)
	require.Len(t, list, 3)
	require.Equal(t, "the second", list[2].Note)
	require.Empty(t, list[0].Digest)
	j.tokens(t, "rm", list[0].ID)
	first.waitFor(t, `nats connection lost`)
	first.waitFor(t, `authorization violation`)
	refused := execute(t, worker, launch{args: []string{"--sandbox", "process", "--join", j.token}})
	require.NotZero(t, refused.code)
	require.Contains(t, refused.stderr, "a join token may have expired or been removed")
	require.NotContains(t, refused.stderr, j.token)

	j.stop(t)
	again := startServe(t, script(t, say("Done.")), "--listen", "127.0.0.1:0", "--listen-tls", "always", "--data", j.data)
	again.waitFor(t, `coordinator join-token add --data \S+ makes a token`) // there is a worker with one
	require.Len(t, j.listed(t), 2)
	joins(t, j.tokens(t, "add"), "default")

	reach := again.waitFor(t, `reach it with: --nats (\S+) --creds (\S+) --tls-ca (\S+) --pool-nats '(\S+)' --pool-creds '(\S+)'\n`)
	moved, err := join.Parse(gpu)
	require.NoError(t, err)
	moved.Addresses = []string{strings.TrimPrefix(reach[1], "tls://")} // the port is another one
	joins(t, moved.String(), "gpu")
	folder := t.TempDir()
	write(t, filepath.Join(folder, "own.yaml"),
		"name: own\ndescription: Speaks.\nparameters: {type: object}\ncommand: [echo, '\"in its account\"']\npool: gpu\nresources: [{key: gpu/one}]\n")
	mine := []string{"call", "own", "{}", "--tools", folder}
	called = succeed(t, coordinator, launch{
		args: append(mine, "--nats", reach[1], "--creds", reach[2], "--tls-ca", reach[3], "--pool-nats", reach[4], "--pool-creds", reach[5]),
	})
	require.Contains(t, called.stdout, `"output":"in its account"`)
	later, err := join.Parse(j.tokens(t, "add", "--role", "coordinator"))
	require.NoError(t, err)
	require.Equal(t, []protocol.Pool{"gpu"}, later.Pools)
	far = later.String()
	succeed(t, coordinator, context("context", "add", "far2", "--join", far))
	called = succeed(t, coordinator, context(append(mine, "--context", "far2")...))
	require.Contains(t, called.stdout, `"output":"in its account"`, "by a context of another machine")
}

// TestJoin_WrongTokens: each error says what is wrong.
func TestJoin_WrongTokens(t *testing.T) {
	t.Parallel()
	j := startJoinable(t, filepath.Join(t.TempDir(), "data"))
	other := startJoinable(t, filepath.Join(t.TempDir(), "data"))
	strange, err := join.Parse(other.token)
	require.NoError(t, err)
	own, err := join.Parse(j.token)
	require.NoError(t, err)
	strange.Addresses = own.Addresses
	expired := j.tokens(t, "add", "--expires", "1s")
	time.Sleep(1100 * time.Millisecond) // until it has
	for want, args := range map[string][]string{
		"its authority is another one":                      {"--join", strange.String()},
		"the token has expired":                             {"--join", expired},
		"was it copied whole?":                              {"--join", j.token[:len(j.token)-9]},
		"the token is one of a coordinator":                 {"--join", j.tokens(t, "add", "--role", "coordinator")},
		"--pool gpu: the token is for pool default":         {"--join", j.token, "--pool", "gpu"},
		"--join: the token says where the fleet is":         {"--join", j.token, "--nats", "nats://127.0.0.1:1"},
		"not a join token: coordinator join-token add prin": {"--join", "nowhere"},
	} {
		refused := execute(t, worker, launch{args: append([]string{"--sandbox", "process"}, args...)})
		require.NotZero(t, refused.code)
		require.Contains(t, refused.stderr, want)
	}
	shown := succeed(t, worker, launch{args: []string{"--join", j.token, "--print-config"}})
	require.NotContains(t, shown.stdout, j.token)
}
