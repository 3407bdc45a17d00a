//go:build unix

package integration

import (
	"encoding/json"
	"fmt"
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
	require.Regexp(t, `go +in_use `, execute(t, coordinator, in("session", "ls")).stdout)
	require.Regexp(t, `state +in_use`, execute(t, coordinator, in("session", "show", "s")).stdout)
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
