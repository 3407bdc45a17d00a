//go:build unix

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// localServer is the process that serves the sessions of a home directory; 0 if none says so.
func localServer(t *testing.T, home string) int {
	t.Helper()
	var state struct {
		PID     int    `json:"pid"`
		Address string `json:"address"`
	}
	file, err := os.ReadFile(filepath.Join(home, ".local", "state", "toolfleet", "local", "server.json"))
	if err != nil || json.Unmarshal(file, &state) != nil || state.Address == "" {
		return 0
	}
	return state.PID
}

// TestLocal_AKilledServerLosesNothing: the turn that runs ends, and the next command has all of it.
func TestLocal_AKilledServerLosesNothing(t *testing.T) {
	t.Parallel()
	home, workspace, hold := t.TempDir(), t.TempDir(), newGate(t)
	in := func(args ...string) launch { return launch{args: args, env: []string{"HOME=" + home}} }
	model := script(t, say("Once.", bash("c1", "echo ran >>log; touch started; "+hold.pass())), say("", bash("c2", "echo again >>log")), say("Done."))
	run := start(t, coordinator, in("run", "--json", "--model", model, "--session", "s", "--sandbox", "process", "--workspace", workspace, "go"))
	waitUntil(t, func() bool { return exists(filepath.Join(workspace, "started")) })
	before := localServer(t, home)
	require.NotZero(t, before)
	require.NoError(t, syscall.Kill(before, syscall.SIGKILL))
	hold.open(t)
	require.Equal(t, 0, run.wait(t), run)
	require.NotEqual(t, before, localServer(t, home))
	require.Equal(t, "ran\nagain\n", content(t, filepath.Join(workspace, "log")))
	shown := execute(t, coordinator, in("session", "show", "s"))
	require.Contains(t, shown.stdout, "answered", shown.stderr)
	require.Contains(t, shown.stdout, "2 tool calls")
	require.NoError(t, syscall.Kill(localServer(t, home), syscall.SIGKILL))
	require.Contains(t, execute(t, coordinator, in("session", "log", "s")).stdout, "Done.")
}

// TestLocal_IsSeenFromAnotherTerminal: what a process runs is shown and followed while it runs, and
// nobody else runs or changes it.
func TestLocal_IsSeenFromAnotherTerminal(t *testing.T) {
	t.Parallel()
	home, workspace, hold := t.TempDir(), t.TempDir(), newGate(t)
	in := func(args ...string) launch { return launch{args: args, env: []string{"HOME=" + home}} }
	model := script(t, say("Look.", bash("c1", "touch started; "+hold.pass()+"; echo it ran")), say("Done."))
	run := start(t, coordinator, in("run", "--model", model, "--session", "s", "--sandbox", "process", "--workspace", workspace, "go"))
	waitUntil(t, func() bool { return exists(filepath.Join(workspace, "started")) })
	require.Regexp(t, `go +running `, execute(t, coordinator, in("session", "ls")).stdout)
	require.Regexp(t, `state +running`, execute(t, coordinator, in("session", "show", "s")).stdout)
	require.Contains(t, execute(t, coordinator, in("session", "log", "s")).stdout, "Look.")
	busy := fmt.Sprintf("session s: session is busy: process %d of this machine runs it", run.cmd.Process.Pid)
	for _, args := range [][]string{
		{"run", "--model", model, "--session", "s", "--sandbox", "process", "go on"},
		{"call", "--session", "s", "--sandbox", "process", "list"},
		{"session", "rm", "--force", "s"},
		{"session", "compact", "--model", model, "s"},
	} {
		got := execute(t, coordinator, in(args...))
		require.NotZero(t, got.code, args)
		require.Contains(t, got.stderr, busy, args)
	}
	follows := start(t, coordinator, in("session", "attach", "--json", "s"))
	require.NotNil(t, follows.stdout.Wait(`"type":"tool_call".*"call_id"`, follows.exited, patience))
	hold.open(t)
	require.Equal(t, 0, run.wait(t), run)
	require.Equal(t, 0, follows.wait(t), follows)
	require.Contains(t, follows.stdout.String(), "it ran")
	require.Regexp(t, `state +answered`, execute(t, coordinator, in("session", "show", "s")).stdout)
}

// TestLocal_CallsReachTheWorkerOfTheirSession: sessions that run at the same time have their own
// flags, such as variables.
func TestLocal_CallsReachTheWorkerOfTheirSession(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	model := script(t, say("", bash("c1", "echo is $WHO")), say("", bash("c2", "echo is $WHO")), say("", bash("c3", "echo is $WHO")), say("Done."))
	var all []*process
	for i := range 4 {
		all = append(all, start(t, coordinator, launch{
			args: []string{"run", "--json", "--model", model, "--sandbox", "process", "--workspace", t.TempDir(), "--env", fmt.Sprint("WHO=", i), "go"},
			env:  []string{"HOME=" + home},
		}))
	}
	for i, p := range all {
		require.Equal(t, 0, p.wait(t), p)
		require.Equal(t, 3, strings.Count(p.stdout.String(), fmt.Sprintf(`is %d\n"`, i)), p)
	}
}

// TestLocal_WithoutAHome says what to do.
func TestLocal_WithoutAHome(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	model := script(t, say("never"))
	got := execute(t, coordinator, launch{args: []string{"run", "--model", model, "--sandbox", "process", "--workspace", t.TempDir(), "go"}, env: []string{"HOME=" + file}})
	require.Equal(t, 1, got.code)
	require.Contains(t, got.stderr, "set HOME or XDG_STATE_HOME to a directory of yours that can be written to, or name one with --data")
}

// TestLocal_HTTPServesTheSessionsOfThisMachine: coordinator http shows what other commands run, and
// what clients begin there is continued in the terminal.
func TestLocal_HTTPServesTheSessionsOfThisMachine(t *testing.T) {
	t.Parallel()
	home, workspace, elsewhere, hold := t.TempDir(), t.TempDir(), t.TempDir(), newGate(t)
	in := func(args ...string) launch { return launch{args: args, env: []string{"HOME=" + home}} }
	model := script(t, say("Look.", bash("c1", "touch started; "+hold.pass()+"; pwd >here")), say("Done."))
	web := start(t, coordinator, in("http", "--workspace", workspace, "--sandbox", "process", "--model", model))
	url := web.stdout.Wait(`"url":"([^"]*)"`, web.exited, patience)
	require.NotNil(t, url, web)
	token, err := os.ReadFile(web.stdout.Wait(`"token_file":"([^"]*)"`, web.exited, patience)[1])
	require.NoError(t, err)
	api := httpAPI{url[1], strings.TrimSpace(string(token))}
	ask := func(method, path string, body object) (status int, answer string) {
		t.Helper()
		var sent io.Reader = http.NoBody
		header := http.Header{}
		if body != nil {
			sent = bytes.NewReader(encode(t, body))
			header.Set("Content-Type", "application/json")
		}
		status, read, _, err := api.send(t.Context(), method, path, sent, header)
		require.NoError(t, err)
		t.Logf("%s %s: %d %.400s", method, path, status, read)
		return status, string(read)
	}
	first, second := newGate(t), newGate(t)
	defer second.open(t)
	theirs := script(t, say("", bash("c1", "touch began; "+first.pass())), say("", bash("c2", "touch next; "+second.pass())), say("Never."))
	run := start(t, coordinator, in("run", "--model", theirs, "--session", "theirs", "--sandbox", "process", "--workspace", elsewhere, "go"))
	waitUntil(t, func() bool { return exists(filepath.Join(elsewhere, "began")) })
	status, shown := ask("GET", "/v1/sessions/theirs", nil)
	require.Equal(t, 200, status)
	require.Contains(t, shown, `"in_use"`)
	status, refused := ask("POST", "/v1/sessions/theirs/turns", object{"prompt": "more"})
	require.Equal(t, 409, status)
	require.Contains(t, refused, fmt.Sprintf("process %d of this machine runs it", run.cmd.Process.Pid))
	status, sent := ask("POST", "/v1/calls", object{"tool": "bash", "arguments": object{"command": "touch mine"}, "session_id": "theirs"})
	require.Equal(t, 202, status, sent)
	first.open(t)
	waitUntil(t, func() bool { return exists(filepath.Join(elsewhere, "next")) })
	require.FileExists(t, filepath.Join(elsewhere, "mine"), "its calls run in its own process, in their order")
	status, _ = ask("POST", "/v1/sessions/theirs/cancel", nil)
	require.Equal(t, 200, status)
	require.NotZero(t, run.wait(t), run)
	for path, body := range map[string]object{
		"/v1/sessions/theirs/turns": {"prompt": "more"}, "/v1/calls": {"tool": "list", "arguments": object{"path": "."}, "session_id": "theirs"},
	} {
		status, refused = ask("POST", path, body)
		require.Equal(t, 409, status)
		require.Contains(t, refused, "coordinator chat --session theirs")
	}

	status, refused = ask("POST", "/v1/calls", object{"tool": "list", "arguments": object{"path": "."}, "session_id": "../x"})
	require.Equal(t, 422, status)
	require.Contains(t, refused, `invalid name: session id \"../x\": must be`)
	status, _ = ask("POST", "/v1/sessions", object{"prompt": "go", "session_id": "mine"})
	require.Equal(t, 202, status)
	waitUntil(t, func() bool { return exists(filepath.Join(workspace, "started")) })
	busy := execute(t, coordinator, in("run", "--model", model, "--session", "mine", "--sandbox", "process", "go on"))
	require.Contains(t, busy.stderr, fmt.Sprintf("process %d of this machine runs it", web.cmd.Process.Pid))
	require.Regexp(t, `go +running `, execute(t, coordinator, in("session", "ls")).stdout)
	other := execute(t, coordinator, in("http", "--workspace", elsewhere, "--sandbox", "process", "--model", model))
	require.Equal(t, 2, other.code, other.stderr)
	require.Contains(t, other.stderr, fmt.Sprintf("runs already, as process %d", web.cmd.Process.Pid))
	same := execute(t, coordinator, in("http", "--workspace", workspace, "--sandbox", "process"))
	require.Equal(t, 2, same.code, same.stderr)
	require.Contains(t, same.stderr, "use that process, or give --data DIR")
	hold.open(t)
	waitUntil(t, func() bool {
		_, shown := ask("GET", "/v1/sessions/mine", nil)
		return strings.Contains(shown, `"answered"`)
	})
	require.FileExists(t, filepath.Join(workspace, "here"))
	more := execute(t, coordinator, in("run", "--json", "--model",
		script(t, say("1"), say("2"), say("", bash("c1", "cat here >again")), say("Continued.")), "--session", "mine",
		"--sandbox", "process", "go on"))
	require.Equal(t, 0, more.code, more.stderr)
	require.FileExists(t, filepath.Join(workspace, "again"), "in the same directory")
	_, shown = ask("GET", "/v1/sessions/mine", nil)
	require.Contains(t, shown, `"turn":2`)
	require.NoError(t, web.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, web.wait(t), web)
}

// TestLocal_HTTPJudgesBeforeItBegins: a client that may make no session leaves none, and one of
// another tenant does not learn which there are.
func TestLocal_HTTPJudgesBeforeItBegins(t *testing.T) {
	t.Parallel()
	home, hold := t.TempDir(), newGate(t)
	defer hold.open(t)
	in := func(args ...string) launch { return launch{args: args, env: []string{"HOME=" + home}} }
	workspace, tokens := t.TempDir(), filepath.Join(t.TempDir(), "tokens")
	reader, other, owner := strings.Repeat("r", 40), strings.Repeat("o", 40), strings.Repeat("w", 40)
	require.NoError(t, os.WriteFile(tokens, []byte("reader read "+reader+"\nother run "+other+" acme\nowner operate "+owner+"\n"), 0o600))
	start(t, coordinator, in("run", "--model", script(t, say("", bash("c1", "touch began; "+hold.pass())), say("Done.")),
		"--session", "theirs", "--sandbox", "process", "--workspace", workspace, "go"))
	waitUntil(t, func() bool { return exists(filepath.Join(workspace, "began")) })
	web := start(t, coordinator, in("http", "--sandbox", "process", "--http-tokens", tokens, "--model", script(t, say("Done."))))
	url := web.stdout.Wait(`"url":"([^"]*)"`, web.exited, patience)
	require.NotNil(t, url, web)
	for _, c := range []struct {
		token, path string
		body        object
		status      int
	}{
		{reader, "/v1/calls", object{"tool": "list", "arguments": object{"path": "."}, "session_id": "never"}, 403},
		{reader, "/v1/sessions", object{"prompt": "go", "session_id": "never"}, 403},
		{other, "/v1/sessions/theirs/turns", object{"prompt": "go"}, 404},
		{other, "/v1/calls", object{"tool": "list", "arguments": object{"path": "."}, "session_id": "theirs"}, 404},
	} {
		api := httpAPI{url[1], c.token}
		status, answer, _, err := api.send(t.Context(), "POST", c.path, bytes.NewReader(encode(t, c.body)), http.Header{"Content-Type": {"application/json"}})
		require.NoError(t, err)
		require.Equal(t, c.status, status, "%s %s: %s", c.path, c.token, answer)
	}
	api := httpAPI{url[1], owner}
	status, _, _, err := api.send(t.Context(), "POST", "/v1/calls?wait_ms=60000",
		bytes.NewReader(encode(t, object{"tool": "list", "arguments": object{"path": "."}, "session_id": "brief"})),
		http.Header{"Content-Type": {"application/json"}})
	require.NoError(t, err)
	require.Equal(t, 202, status)
	for _, id := range []string{"brief", "none"} {
		status, answer, _, err := api.send(t.Context(), "DELETE", "/v1/sessions/"+id, http.NoBody, http.Header{})
		require.NoError(t, err)
		require.Equal(t, 200, status, "%s", answer)
	}
	left := execute(t, coordinator, in("session", "ls")).stdout
	for _, id := range []string{"never", "brief", "none"} {
		require.NotContains(t, left, id)
	}
}
