package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPolicy_OfASession: what a policy file and flags deny is a result that the model
// sees, and an event; what is allowed runs.
func TestPolicy_OfASession(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, rules, "commands: {allow: [echo, ls]}\npaths: {write: [out], except: [bash]}\nmax_calls: 4\n")
	model := script(t,
		say("Trying.",
			bash("c1", "echo fine"),
			bash("c2", "echo fine; rm -rf x"),
			use("c3", "write", object{"path": "out/a", "content": "a"}),
			use("c4", "write", object{"path": "b", "content": "b"}),
			use("c5", "grep", object{"pattern": "a"})),
		say("More.", use("c6", "list", object{}), use("c7", "exists", object{"path": "b"}), use("c8", "list", object{})),
		say("Done."))
	workspace := t.TempDir()
	got := succeed(t, coordinator, launch{args: runFlags(t, model, workspace, "--json", "--policy", rules, "--deny-tool", "grep")})
	list := events(t, got.stdout)
	all := results(list)
	for id, status := range map[string]string{
		"c1": "ok", "c2": "rejected", "c3": "ok", "c4": "rejected", "c5": "rejected", "c6": "ok", "c7": "ok", "c8": "rejected",
	} {
		require.Equal(t, status, all[id].Status, "%s: %s", id, all[id].Content)
		if status == "rejected" {
			require.Equal(t, "policy_denied", all[id].Error.Code)
		}
	}
	require.Contains(t, all["c2"].Content, `The command "rm -rf x" is not allowed in this session; allowed are: echo, ls.`)
	require.Contains(t, all["c4"].Content, "write may not change b")
	require.Contains(t, all["c8"].Content, "used up its 4 tool calls")
	require.NoFileExists(t, filepath.Join(workspace, "b"))
	require.Len(t, ofType(list, "policy_decision"), 4)
	require.Contains(t, got.stderr, "tool call decided by policy")
	require.Contains(t, got.stderr, "rule=paths.write")

	got = succeed(t, coordinator, launch{args: runFlags(t, model, workspace, "--json", "--ask-for", "write")})
	require.Contains(t, results(events(t, got.stdout))["c3"].Content, "there is nobody to ask")

	got = execute(t, coordinator, launch{args: runFlags(t, model, workspace, "--policy", filepath.Join(workspace, "none"))})
	require.Equal(t, 2, got.code)
	write(t, rules, "max_calls: 4\nmax_call: 4\n")
	got = execute(t, coordinator, launch{args: runFlags(t, model, workspace, "--policy", rules)})
	require.Equal(t, 2, got.code)
	require.Contains(t, got.stderr, `policy.yaml:2: there is no field "max_call"`)
}

// TestPolicy_BoundsOfASession: bounds of a tool's calls, which denied ones do not spend, the
// least sandbox level, and approval by the words of a command; all of them of a run.
func TestPolicy_BoundsOfASession(t *testing.T) {
	t.Parallel()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	model := script(t,
		say("Trying.", bash("c1", "rm x"), bash("c2", "echo one"), use("c3", "list", object{"dir": "x"}), bash("c4", "echo two")),
		say("More.", bash("c5", "echo three"), bash("c6", "git commit -m x"), use("c7", "list", object{})),
		say("Done."))
	for _, test := range []struct {
		rules string
		want  map[string]string // codes; "" is ok
	}{
		{"commands: {deny: [rm]}\nmax_calls_of: {bash: 3}\n", map[string]string{
			"c1": "policy_denied", "c2": "", "c3": "invalid_tool_arguments", "c4": "", "c5": "", "c6": "policy_denied", "c7": "",
		}},
		{"commands: {deny: [rm]}\nmax_calls: 3\n", map[string]string{
			"c1": "policy_denied", "c2": "", "c3": "invalid_tool_arguments", "c4": "", "c5": "", "c6": "policy_denied", "c7": "policy_denied",
		}},
		{"tools: {deny: [bash]}\n", map[string]string{
			"c1": "policy_denied", "c2": "policy_denied", "c3": "invalid_tool_arguments", "c4": "policy_denied",
			"c5": "policy_denied", "c6": "policy_denied", "c7": "",
		}},
		{"approval: {commands: [git commit]}\ncommands: {allow: [echo, git, rm]}\n", map[string]string{
			"c1": "", "c2": "", "c3": "invalid_tool_arguments", "c4": "", "c5": "", "c6": "policy_denied", "c7": "",
		}},
	} {
		write(t, rules, test.rules)
		got := succeed(t, coordinator, launch{args: runFlags(t, model, t.TempDir(), "--json", "--policy", rules)})
		list, codes, denied := events(t, got.stdout), map[string]string{}, 0
		for id, result := range results(list) {
			codes[id] = ""
			if result.Error != nil {
				codes[id] = result.Error.Code
			}
			if codes[id] == "policy_denied" {
				denied++
				require.Equal(t, "rejected", result.Status)
			}
		}
		require.Equal(t, test.want, codes, test.rules)
		require.Len(t, ofType(list, "policy_decision"), denied)
		require.Equal(t, denied, strings.Count(got.stderr, "tool call decided by policy"))
	}
}

// TestPolicy_AnsweredFromElsewhere: a served session asks, and another process answers.
func TestPolicy_AnsweredFromElsewhere(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	model := script(t,
		say("May I?", use("c1", "write", object{"path": "a", "content": "a"}), use("c2", "write", object{"path": "b", "content": "b"}),
			use("c3", "write", object{"path": "c", "content": "c"})),
		say("Done."))
	startServe(t, model, append([]string{"--ask-for", "write"}, b.flags...)...)
	startWorkers(t, 1, b.flags)
	workspace := t.TempDir()
	rules := filepath.Join(t.TempDir(), "policy.yaml")
	write(t, rules, "approval: {tools: [write], timeout: 1s}\nmax_calls: 9\n")
	submitted := start(t, coordinator, launch{args: append([]string{"submit", "--json", "--workspace", workspace, "go"}, b.flags...)})
	answer := func(extra ...string) finished {
		asked := submitted.waitFor(t, `calls of write need approval: write .*"path":"`+extra[0]+`".*coordinator approve --nats \S+ --creds .+ (\S+) (\S+)\n`)
		return execute(t, coordinator, launch{args: append(append([]string{"approve", asked[1], asked[2]}, b.flags...), extra[1:]...)})
	}
	got := answer("a", "--note", "tell ada when it is done")
	require.Equal(t, 0, got.code, got.stderr)
	require.Equal(t, "approved\n", got.stdout)
	got = answer("b", "--deny", "--note", "b is mine")
	require.Equal(t, "denied\n", got.stdout)
	require.Equal(t, 0, answer("c").code)
	require.Equal(t, 0, submitted.wait(t), submitted)
	list := events(t, submitted.stdout.String())
	all := results(list)
	require.Equal(t, "ok", all["c1"].Status)
	require.Contains(t, all["c1"].Content, "approved by a person, who said: tell ada when it is done")
	require.Equal(t, "rejected", all["c2"].Status)
	require.Contains(t, all["c2"].Content, "said no. They said: b is mine")
	require.Len(t, ofType(list, "policy_decision"), 3)
	require.Equal(t, "a", content(t, filepath.Join(workspace, "a")))
	require.NoFileExists(t, filepath.Join(workspace, "b"))

	late := execute(t, coordinator, launch{args: append([]string{"approve", "s", "c"}, b.flags...)})
	require.Equal(t, 1, late.code)
	require.Contains(t, late.stderr, "approve ls lists the calls that wait")

	// The turn's own policy binds as well, and its shorter time.
	got = succeed(t, coordinator, launch{args: append([]string{"submit", "--json", "--policy", rules, "go"}, b.flags...)})
	require.Contains(t, results(events(t, got.stdout))["c1"].Content, "nobody answered within 1s")
}

// TestPolicy_OfADetachedTurn: a turn that nobody follows and that waits for approval is seen by
// everybody, and the command line that is printed answers it.
func TestPolicy_OfADetachedTurn(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	model := script(t, say("May I?", use("c1", "write", object{"path": "a", "content": "a"})), say("Done."))
	startServe(t, model, append([]string{"--ask-for", "write"}, b.flags...)...)
	startWorkers(t, 1, b.flags)
	list := func(args ...string) string {
		got := succeed(t, coordinator, launch{args: append(append([]string{"approve", "ls"}, args...), b.flags...)})
		return got.stdout
	}
	require.Equal(t, "no call waits for approval or for an answer\n", list())
	id := b.submit(t, "go")
	require.Eventually(t, func() bool { return strings.Contains(b.session(t, "ls").stdout, "waits for approval") }, patience, perProcess)
	show := b.session(t, "show", id).stdout
	require.Regexp(t, `state +waits for approval\n`, show)
	require.Contains(t, show, "need approval: write")
	logged := ofType(events(t, b.session(t, "log", "--json", id).stdout), "approval_asked")
	require.Len(t, logged, 1)
	require.NotEmpty(t, logged[0].CallID)
	require.Contains(t, list("--json"), logged[0].CallID)
	printed := regexp.MustCompile(`coordinator (approve --nats .* ` + id + ` ` + logged[0].CallID + `)\n`)
	for name, text := range map[string]string{"approve ls": list(), "session show": show, "session log": b.session(t, "log", id).stdout} {
		text = regexp.MustCompile(`\n? {2,}`).ReplaceAllString(text, " ") // lines that are broken
		require.Regexp(t, `approve --nats \S+ --creds .+ `+id, text, name)
	}
	command := printed.FindStringSubmatch(list())
	require.NotNil(t, command, list())

	attached := start(t, coordinator, launch{args: append([]string{"session", "attach", id}, b.flags...)})
	attached.waitFor(t, `need approval: write`)
	succeed(t, coordinator, launch{args: append(pasted(t, command[1]), "--note", "be quick")})
	require.Equal(t, 0, attached.wait(t), attached)
	require.Regexp(t, `write: approved by \S+ \(claimed\), who said: be quick`, b.session(t, "log", id).stdout)
	require.Regexp(t, `answered`, b.session(t, "ls").stdout)
	require.Equal(t, "no call waits for approval or for an answer\n", list())
	again := execute(t, coordinator, launch{args: pasted(t, command[1])})
	require.Equal(t, 1, again.code)
}

// gate holds calls: while it is shut, their commands wait. It opens by itself when the
// test ends, so that what a killed worker left behind ends too.
type gate struct{ file string }

func newGate(tb testing.TB) *gate {
	tb.Helper()
	g := &gate{file: filepath.Join(tb.TempDir(), "gate")}
	require.NoError(tb, os.WriteFile(g.file, nil, 0o600))
	return g
}

// open lets the calls go on.
func (g *gate) open(tb testing.TB) {
	tb.Helper()
	require.NoError(tb, os.Remove(g.file))
}

// pass is the shell command that waits at the gate.
func (g *gate) pass() string { return fmt.Sprintf("while [ -e '%s' ]; do sleep 0.05; done", g.file) }

// tally counts how often something was done, by lines of a file outside of every workspace.
type tally struct{ file string }

func newTally(tb testing.TB) *tally {
	tb.Helper()
	return &tally{file: filepath.Join(tb.TempDir(), "tally")}
}

// add is the shell command that counts.
func (c *tally) add(word string) string { return fmt.Sprintf("echo %s >> '%s'", word, c.file) }

// count is how often it was done so far.
func (c *tally) count() int {
	content, err := os.ReadFile(c.file)
	if err != nil {
		return 0 // nobody has counted
	}
	return bytes.Count(content, []byte("\n"))
}

// goEnv is a variable of the go command, which sandboxes need for their caches.
func goEnv(ctx context.Context, tb testing.TB, name string) string {
	tb.Helper()
	out, err := goCommand(ctx, ".", "env", name)
	require.NoError(tb, err, out)
	return out
}

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
