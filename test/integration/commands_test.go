package integration

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
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
		got := execute(t, coordinator, launch{args: args})
		require.Equal(t, 0, got.code, got.stderr)
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
		say("", bash("begun", "until [ -e up ]; do sleep 0.05; done"), use("c4", "process", object{"action": "list"}), bash("c5", "touch stop"), use("c6", "bash", object{"command": "ls", "read_only": true})),
		say("Done."),
	)
	got := execute(t, coordinator, launch{args: runFlags(t, model, workspace, "--json", "--toolset", "core-shell")})
	require.Equal(t, 0, got.code, got.stderr)
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
		require.Equal(t, []any{"worker_info", "development", "process", "none", 4.0, false}, []any{info["type"], info["build"], info["driver"], info["level"], info["slots"], info["read_only"]})
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
