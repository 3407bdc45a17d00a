package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limits runs a verb of coordinator limits on the fleet.
func (b *broker) limits(tb testing.TB, verb string, args ...string) finished {
	tb.Helper()
	return execute(tb, coordinator, launch{args: append(append([]string{"limits", verb}, b.flags...), args...)})
}

// TestLimits_Commands: what set, ls and rm print, and what they refuse without a change.
func TestLimits_Commands(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startServe(t, script(t, say("Done.")), b.flags...)
	require.Equal(t, "[]\n", b.limits(t, "ls", "--json").stdout)
	for _, args := range [][]string{
		{"account/*", "--concurrent", "5", "--rate", "60/min", "--burst", "10"}, {"account/vip", "--concurrent", "50"}, {"*/*", "--rate", "1000/s"},
	} {
		set := b.limits(t, "set", args...)
		require.Equal(t, 0, set.code, set.stderr)
	}
	want := `[{"lane":"account/vip","concurrent":50},{"lane":"account/*","concurrent":5,"rate":"60/min","burst":10},{"lane":"*/*","rate":"1000/s"}]`
	require.JSONEq(t, want, b.limits(t, "ls", "--json").stdout)
	require.Equal(t, `LANE         CONCURRENT  RATE    BURST  TOKENS  WAITING  TENANT  WEIGHT  SESSIONS  STORED  POOL
account/vip  50          -       -      -       -        -       -       -         -       -
account/*    5           60/min  10     -       -        -       -       -         -       -
*/*          -           1000/s  100    -       -        -       -       -         -       -
`, b.limits(t, "ls").stdout)
	for text, args := range map[string][]string{
		"concurrent -1: must be 1 to 1000000":                                           {"set", "account/*", "--concurrent=-1"},
		`rate "0/s": must be more than 0`:                                               {"set", "account/*", "--rate", "0/s"},
		`--concurrent: "0": must be a whole number, at least 1; limits rm`:              {"set", "account/*", "--concurrent", "0", "--rate", "5/s"},
		`--burst: "x": must be a whole number, at least 1; limits rm`:                   {"set", "account/*", "--rate", "5/s", "--burst", "x"},
		"min or h, such as 60/min\nRun \"coordinator limits":                            {"set", "account/*", "--rate", "5/week", "--burst", "3"},
		`rate "9": must be a whole number per s, min or h, such as 60/min`:              {"set", "account/*", "--rate", "9"},
		"rate 1000000/s: must be more than 0 and at most 100000/s":                      {"set", "account/*", "--rate", "1000000/s"},
		"burst 10: needs a rate":                                                        {"set", "account/*", "--concurrent", "1", "--burst", "10"},
		"account/*: needs concurrent, rate or waiting":                                  {"set", "account/*"},
		`lane "account": 1 segments, and a lane is the first two segments of a`:         {"set", "account", "--concurrent", "1"},
		`lane "account/a/b": 3 segments, and a lane is the first two of a`:              {"set", "account/a/b", "--concurrent", "1"},
		`lane "account/*x": * must be the end of a segment; give two segments, such as`: {"set", "account/*x", "--concurrent", "1"},
		"tenant acme: needs weight, concurrent, rate, sessions or stored":               {"set", "--tenant", "acme"},
		"stored 1000: must be 1 MiB to 1024 TiB":                                        {"set", "--tenant", "acme", "--stored", "1000"},
		`--stored: "-1": want a number of bytes, as in`:                                 {"set", "--tenant", "acme", "--stored=-1"},
		"lane account/*: weight, sessions and stored are of tenants":                    {"set", "account/*", "--stored", "1GiB"},
		"weight 1001: must be 1 to 1000":                                                {"set", "--tenant", "acme", "--weight", "1001"},
		"a rule is about one of lane, tenant and pool":                                  {"set", "--tenant", "acme", "--weight", "3", "account/*"},
		"pool p: needs waiting, and takes nothing else":                                 {"set", "--pool", "p", "--weight", "3"},
		"tenant acme: takes weight, concurrent, rate, burst":                            {"set", "--tenant", "acme", "--waiting", "3"},
		"there is no such limit: p":                                                     {"rm", "--pool", "p"},
		`invalid name: tenant "A"`:                                                      {"set", "--tenant", "A", "--weight", "3"},
		"there is no such limit: acme":                                                  {"rm", "--tenant", "acme"},
		`lane "account/..": matches no lane`:                                            {"set", "account/..", "--concurrent", "1"},
		"there is no such limit: sandbox/*":                                             {"rm", "sandbox/*"},
	} {
		got := b.limits(t, args[0], args[1:]...)
		require.NotZero(t, got.code, text)
		require.Contains(t, got.stderr, text[:min(len(text), 50)], args)
	}
	require.JSONEq(t, want, b.limits(t, "ls", "--json").stdout, "nothing has changed")
	removed := b.limits(t, "rm", "account/vip")
	require.Equal(t, 0, removed.code, removed.stderr)
	require.NotContains(t, b.limits(t, "ls").stdout, "vip")
}

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
