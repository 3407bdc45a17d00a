package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/test/processtest"
)

// TestCall_OutputThatWasCutIsReadFromWhereTheMarkSays goes through two processes: what the
// first one's command wrote is read by the second.
func TestCall_OutputThatWasCutIsReadFromWhereTheMarkSays(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	run := func(session, tool, arguments string) callResult {
		args := []string{"call", "--data", data, "--sandbox", "process", tool, arguments}
		if session != "" {
			args = append(args, "--session", session)
		}
		got := succeed(t, coordinator, launch{args: args})
		return parseCall(t, got)
	}
	cut := run("", "bash", `{"command":"seq 1 30000"}`)
	mark := regexp.MustCompile(`all of it: read it from path="(result:[^"]+):(\d+)@(\d+)" on\]$`).FindStringSubmatch(cut.Content)
	require.NotNil(t, mark, cut.Content[len(cut.Content)-300:])
	read := run(cut.SessionID, "read", `{"path":"`+mark[1]+":"+mark[2]+"@"+mark[3]+`","limit":2}`)
	require.Equal(t, []string{"4416", "3"}, mark[2:], "44 was shown of it")
	require.Contains(t, read.Content, "  4416\t16\n  4417\t4417\n[line 4416 of 30000, bytes 3-4 of 4, and lines 4417-4417; read on with path=")
	last := run(cut.SessionID, "read", `{"path":"`+mark[1]+`#stdout","offset":30000}`)
	require.Equal(t, " 30000\t30000\n[lines 30000-30000 of 30000]", last.Content)
}

// TestRun_CommandsInTheBackgroundAndInAShell is a session with the toolset whose bash keeps its
// shell.
func TestRun_CommandsInTheBackgroundAndInAShell(t *testing.T) {
	t.Parallel()
	workspace := t.TempDir()
	model := script(t,
		say("", bash("c1", "mkdir d && cd d && export GREETING=hello"), bash("c2", "echo $GREETING >greeting; echo one; echo two >&2; echo three")),
		say("", use("c3", "bash", object{"command": "echo up; : >up; while [ ! -e stop ]; do sleep 0.05; done; echo down", "background": true})),
		say("", bash("begun", "until [ -e up ]; do sleep 0.05; done"), use("c4", "process", object{"action": "list"}),
			bash("c5", "touch stop"), use("c6", "bash", object{"command": "ls", "read_only": true})),
		say("Done."),
	)
	got := succeed(t, coordinator, launch{args: runFlags(t, model, workspace, "--json", "--toolset", "core-shell")})
	told := results(events(t, got.stdout))
	require.Equal(t, "one\ntwo\nthree\n", told["c2"].Content)
	require.Equal(t, "hello\n", content(t, filepath.Join(workspace, "d", "greeting")))
	require.Regexp(t, `^(up\n)?\[background process p-\w+: running; `, told["c3"].Content)
	require.Regexp(t, `^p-\w+  running, 3 bytes written, started [\d:]+: echo up; `, told["c4"].Content)
	require.Equal(t, "ok", told["c5"].Status)
	require.Equal(t, "rejected", told["c6"].Status, "the driver process cannot keep a command from writing")
	require.Contains(t, told["c6"].Content, "sandbox_unsupported")
}

// TestWorkers_AreListedWithWhatTheyCanDo asks two workers, and then a pool that has none.
func TestWorkers_AreListedWithWhatTheyCanDo(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	members := startWorkers(t, 2, b.flags)
	ask := func(flags ...string) finished {
		return execute(t, coordinator, launch{args: append(append([]string{"workers"}, b.flags...), flags...)})
	}
	require.Eventually(t, func() bool { return strings.Count(ask("--json").stdout, "\n") == 2 }, patience, perProcess, "they answer once they run")
	got := ask("--json")
	require.Equal(t, 0, got.code, got.stderr)
	for line := range strings.Lines(got.stdout) {
		var info object
		require.NoError(t, json.Unmarshal([]byte(line), &info), line)
		require.Contains(t, members, info["worker_id"])
		require.Equal(t, []any{"worker_info", "development", "process", "none", 4.0, false},
			[]any{info["type"], info["build"], info["driver"], info["level"], info["slots"], info["read_only"]})
		require.Contains(t, info["languages"], "sh")
	}
	table := ask()
	require.Regexp(t, `^WORKER +VERSION +SLOTS +LANES +SANDBOX +LEVEL `, table.stdout)
	require.Equal(t, 3, strings.Count(table.stdout, "\n"))
	none := ask("--pool", "gpu")
	require.Equal(t, 1, none.code)
	require.Contains(t, none.stderr, "no worker of pool gpu in fleet tf answered")
}

// TestServe_SaysWhichServerTheEnvironmentNames: whoever thinks that it has its own sees that it has
// not.
func TestServe_SaysWhichServerTheEnvironmentNames(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	serve := start(t, coordinator, launch{
		args: []string{"serve", "--model", script(t, say("never"))},
		env:  []string{"TOOLFLEET_NATS=" + b.server.URL(), "TOOLFLEET_CREDS=" + b.server.CredentialFile()},
	})
	serve.waitFor(t, `coordinator: NATS is at `+regexp.QuoteMeta(b.server.URL())+` \(--nats, TOOLFLEET_NATS\)`)
	serve.stop(t)
}

func TestRun_ExitCodes(t *testing.T) {
	t.Parallel()
	forever := script(t, say("", bash("c1", "true")), say("", bash("c1", "true")), say("", bash("c1", "true")))
	cases := map[string]struct {
		model  string
		flags  []string
		code   int
		status string
		stderr string
	}{
		"answered":           {script(t, say("yes")), nil, 0, "answered", ``},
		"the model fails":    {script(t, say("", bash("c1", "true"))), nil, 1, "failed", `script .* has 1 steps and step 2 was asked for`},
		"too many steps":     {forever, []string{"--max-steps", "2"}, 3, "limit_reached", `limit of 2 steps`},
		"too long":           {script(t, say("", bash("c1", "sleep 100"))), []string{"--timeout", "700ms"}, 3, "limit_reached", `limit of 700ms`},
		"too long, thinking": {script(t, step{"text": "one two three", "delay_ms": 60000}), []string{"--timeout", "300ms"}, 3, "limit_reached", `limit of 300ms`},
		"too many tokens": {
			script(t, step{"text": "", "tool_calls": []object{bash("c1", "true")}, "usage": object{"input_tokens": 99}}, say("never")),
			[]string{"--max-tokens", "50"},
			3, "limit_reached", `limit of 50 tokens`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, coordinator, launch{args: runFlags(t, c.model, t.TempDir(), append(c.flags, "--json")...)})
			require.Equal(t, c.code, got.code, got.stderr)
			require.Regexp(t, c.stderr, got.stderr)
			list := events(t, got.stdout)
			ended := list[len(list)-1]
			require.Equal(t, "session_ended", ended.Type)
			require.Equal(t, c.status, ended.Status)
			require.NotNil(t, ended.Usage)
			require.Len(t, ofType(list, "tool_result"), len(ofType(list, "tool_call")), "every call has its result")
		})
	}
}

// TestRun_InterruptLeavesNothingBehind: SIGINT ends the running call with all that
// it started, promptly, even what tries to get away.
func TestRun_InterruptLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		processtest.Unavailable(t, "processes are found by /proc")
	}
	// An argument that no other process on this machine has.
	marker := fmt.Sprintf("8%d.%d", os.Getpid(), time.Now().UnixNano()%1e9)
	sleep := "sleep " + marker
	command := fmt.Sprintf("%s & setsid %s & (trap '' TERM INT; %s) & touch started; %s", sleep, sleep, sleep, sleep)
	workspace := t.TempDir()
	p := start(t, coordinator, launch{args: runFlags(t, script(t, say("Working.", bash("c1", command)), say("never")), workspace, "--json")})
	waitUntil(t, func() bool { return len(processesWith(t, marker)) >= 4 })

	begin := time.Now()
	p.signal(t, os.Interrupt)
	require.Equal(t, 130, p.wait(t), p.stderr)
	took := time.Since(begin)
	t.Logf("ended %s after SIGINT", took.Round(time.Millisecond))
	require.Less(t, took, time.Minute)
	require.Empty(t, processesWith(t, marker))

	list := events(t, p.stdout.String())
	require.Equal(t, "cancelled", results(list)["c1"].Status)
	require.Equal(t, "interrupted", list[len(list)-1].Status)
	require.Len(t, ofType(list, "model_reply"), 1, "the model is not asked again")
}

// TestRun_InterruptWhileTheModelThinks: a model that does not answer is no reason to stay.
func TestRun_InterruptWhileTheModelThinks(t *testing.T) {
	t.Parallel()
	p := start(t, coordinator, launch{args: runFlags(t, script(t, step{"text": "one two three", "delay_ms": 60000}), "")})
	p.waitFor(t, `do it`)
	p.signal(t, syscall.SIGTERM)
	require.Equal(t, 130, p.wait(t))
	require.Empty(t, p.stdout.String(), "no answer, no output")
	require.Regexp(t, `coordinator: interrupted`, p.stderr)
}

// slowness scales bounds of time: the race detector makes everything slower.
const slowness = 1 + 2*slow

// processesWith are the live processes that have the marker in their command line.
func processesWith(tb testing.TB, marker string) []string {
	tb.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(tb, err)
	var found []string
	for _, file := range files {
		line, err := os.ReadFile(file)
		args := bytes.Split(bytes.TrimRight(line, "\x00"), []byte{0})
		// A shell has the marker inside its script; only the commands have it as an argument.
		if err == nil && len(args) == 2 && string(args[1]) == marker {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// perProcess is the time between two looks that start a process each.
const perProcess = 250 * time.Millisecond

// waitUntil waits for something that announces itself in no other way.
func waitUntil(tb testing.TB, holds func() bool) {
	tb.Helper()
	require.Eventually(tb, holds, patience, 20*time.Millisecond)
}

// commands are all that connect to a fleet, by name, with what they need beside it.
func commands(tb testing.TB) map[string]struct {
	binary string
	args   []string
} {
	tb.Helper()
	model := script(tb, say("never"))
	return map[string]struct {
		binary string
		args   []string
	}{
		"run":    {coordinator, []string{"run", "--model", model, "do it"}},
		"call":   {coordinator, []string{"call", "list"}},
		"serve":  {coordinator, []string{"serve", "--model", model}},
		"submit": {coordinator, []string{"submit", "do it"}},
		"ping":   {coordinator, []string{"ping"}},
		"worker": {worker, []string{"--sandbox", "process", "--data", tb.TempDir()}},
	}
}

// TestErrors_NobodyListens: the error names the URL, without its secrets, at once.
func TestErrors_NobodyListens(t *testing.T) {
	t.Parallel()
	const address = "127.0.0.1:1" // no port that the system gives to anybody
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, "--nats", "nats://somebody:s3cret@"+address)})
			require.Equal(t, 1, got.code, got.stderr)
			require.Contains(t, got.stderr, address)
			require.Contains(t, got.stderr, "connect to NATS")
			require.NotContains(t, got.stderr, "s3cret")
			require.Empty(t, got.stdout)
		})
	}
}

// TestErrors_WrongCredentials: refused is not the same as not there.
func TestErrors_WrongCredentials(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, "--nats", b.server.URL())})
			require.Equal(t, 1, got.code, got.stderr)
			require.Contains(t, got.stderr, strings.TrimPrefix(b.server.URL(), "nats://"))
			require.Contains(t, got.stderr, "Authorization Violation")
		})
	}
}

// TestErrors_OtherStream: a stream with another configuration is an error that names the
// difference, and stays as it is.
func TestErrors_OtherStream(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	js := b.jetStream(t)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "TF_CALLS", Subjects: []string{"tf.call.>", "tf.ready.>"}, Retention: jetstream.WorkQueuePolicy,
	})
	require.NoError(t, err)
	for name, c := range commands(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := execute(t, c.binary, launch{args: append(c.args, b.flags...)})
			require.Equal(t, 1, got.code, got.stderr)
			for _, part := range []string{"TF_CALLS", "retention is WorkQueue, must be Limits", "max_msgs_per_subject is -1, must be 1"} {
				require.Contains(t, got.stderr, part)
			}
		})
	}
	stream, err := js.Stream(t.Context(), "TF_CALLS")
	require.NoError(t, err)
	require.Equal(t, jetstream.WorkQueuePolicy, stream.CachedInfo().Config.Retention)

	t.Run("another fleet name helps", func(t *testing.T) {
		t.Parallel()
		ping := launch{args: append([]string{"ping", "--fleet", "other"}, b.flags...)}
		got := execute(t, coordinator, ping)
		require.Equal(t, 1, got.code)
		require.Contains(t, got.stderr, "there is no fleet other")
		got = succeed(t, coordinator, launch{args: append([]string{"bench", "--fleet", "other", "--calls", "10", "--baseline", "0s"}, b.flags...)})
		require.Equal(t, 0, execute(t, coordinator, ping).code)
	})
}

// TestErrors_DataInUse: two embedded servers cannot have one directory.
func TestErrors_DataInUse(t *testing.T) {
	t.Parallel()
	hold, data := newGate(t), t.TempDir()
	flags := []string{"--data", data, "--sandbox", "process"}
	p := start(t, coordinator, launch{args: append([]string{"run", "--model", script(t, say("", bash("c1", hold.pass())), say("Done.")), "do it"}, flags...)})
	p.waitFor(t, `\[1\.1 bash\] +. running on`)
	for name, args := range map[string][]string{
		"run":   append([]string{"run", "--model", script(t, say("never")), "do it"}, flags...),
		"call":  append([]string{"call", "list"}, flags...),
		"serve": {"serve", "--model", script(t, say("never")), "--listen", "127.0.0.1:0", "--data", data},
	} {
		got := execute(t, coordinator, launch{args: args})
		require.Equal(t, 1, got.code, name)
		require.Contains(t, got.stderr, data)
		require.Contains(t, got.stderr, "in use by another process")
		require.Contains(t, got.stderr, "--data")
	}
	hold.open(t)
	require.Equal(t, 0, p.wait(t))
}

// TestErrors_PortInUse: the address is named, at once.
func TestErrors_PortInUse(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	address := listener.Addr().String()
	got := execute(t, coordinator, launch{args: []string{"serve", "--model", script(t, say("never")), "--data", t.TempDir(), "--listen", address}})
	require.Equal(t, 1, got.code, got.stderr)
	require.Contains(t, got.stderr, address)
	require.Contains(t, got.stderr, "address already in use")
}
