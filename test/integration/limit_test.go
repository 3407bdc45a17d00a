package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClients_EndWithinTheirLimitWithoutAServer: the server is gone while a client
// with a time limit waits for a turn or a call.
func TestClients_EndWithinTheirLimitWithoutAServer(t *testing.T) {
	t.Parallel()
	const limit = 4 * time.Second
	hold := newGate(t)
	model := script(t, say("Once.", bash("c1", hold.pass())), say("Answered."))
	data := t.TempDir()
	server := start(t, coordinator, launch{args: []string{"serve", "--listen", "127.0.0.1:0", "--data", data, "--model", model, "--min-level", "none"}})
	flags := pasted(t, server.waitFor(t, `start workers with: worker (--nats \S+ --creds .+) --call-keys`)[1])
	startWorkers(t, 1, flags)
	flags = append(flags, "--timeout", limit.String(), "--workspace", t.TempDir())
	clients := map[string]*process{}
	for name, args := range map[string][]string{
		"submit": {"submit", "do it"}, "run": {"run", "--model", model, "do it"}, "call": {"call", "bash", `{"command":"` + hold.pass() + `"}`},
	} {
		clients[name] = start(t, coordinator, launch{args: append(args, flags...)})
	}
	for _, name := range []string{"submit", "run"} {
		clients[name].waitFor(t, `\[1\.1 bash\] +. running on (\S+)\n`)
	}
	server.kill(t)
	gone := time.Now()
	for name, code := range map[string]int{"submit": 3, "run": 3, "call": 1} {
		require.Equal(t, code, clients[name].wait(t), clients[name])
	}
	require.Less(t, time.Since(gone), limit+25*time.Second)
	require.Contains(t, clients["submit"].stderr.String(), "the turn reached its limit of 4s (timeout)")
}
