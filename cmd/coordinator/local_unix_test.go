//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// What a session of this machine asks on its terminal is also answered from another one, which also
// cancels its turns.
func TestLocal_IsApprovedFromAnotherTerminal(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	program, state := filepath.Join(t.TempDir(), "coordinator"), t.TempDir()
	require.NoError(t, os.Symlink(executable, program))
	t.Cleanup(func() { processtest.EndServer(state) })
	coordinator := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+state)
		out, err := cmd.Output()
		require.NoError(t, err)
		return out
	}
	model := script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "echo it ran"}}]}, {"tool_calls": [{"name": "bash", "arguments": {"command": "echo twice"}}]}, {"text": "Done."}`)
	m := inTmux(t, 100, []string{"XDG_STATE_HOME=" + state}, "run", "--model", model, "--sandbox", "process", "--ask-for", "bash", "--session", "s", "go")
	var asked []report.Question
	require.Eventually(t, func() bool {
		return json.Unmarshal(coordinator("approve", "ls", "--json"), &asked) == nil && len(asked) == 1
	}, 3*time.Minute, 100*time.Millisecond)
	m.shows(question)
	require.Equal(t, "approved\n", string(coordinator("approve", "s", string(asked[0].CallID))))
	m.shows("it ran", "echo twice")
	m.keys("y", "Enter")
	m.shows("twice", "Done.", "[ended: 0]")

	model = script(t, `{"tool_calls": [{"name": "bash", "arguments": {"command": "echo begun; sleep 1000"}}]}`)
	m = inTmux(t, 100, []string{"XDG_STATE_HOME=" + state}, "run", "--model", model, "--sandbox", "process", "--session", "long", "go")
	m.shows("begun")
	require.Equal(t, "session long: 1 turn cancelled\n", string(coordinator("session", "cancel", "long")))
	m.shows("interrupted", "[ended: 130]")
	require.Equal(t, "session long: it has no turn that runs or waits\n", string(coordinator("session", "cancel", "long")))
}

// A command for a session that another process has names the session, and no directory that the
// user did not choose. With --data it names that directory.
func TestBusySession_IsNamed(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	coordinator := filepath.Join(dir, "coordinator")
	require.NoError(t, os.Symlink(executable, coordinator))
	state := filepath.Join(dir, "state")
	mine, data := filepath.Join(state, "toolfleet", "local", "sessions", "mine"), filepath.Join(dir, "data")
	for _, used := range []string{mine, filepath.Join(data, fleet.ServerDir), filepath.Join(state, "toolfleet", "serve", fleet.ServerDir)} {
		require.NoError(t, os.MkdirAll(used, 0o700))
		lock := flock.New(filepath.Join(used, "lock"))
		free, err := lock.TryLock()
		require.NoError(t, err)
		require.True(t, free)
		t.Cleanup(func() { _ = lock.Unlock() })
	}
	model := script(t, `{"text": "never"}`)
	for _, test := range []struct {
		args      []string
		want, not string
	}{
		{[]string{"run", "--model", model, "--session", "mine", "go on"}, "session mine: session is busy: another process of this machine runs it", "--data"},
		{[]string{"call", "--session", "mine", "list"}, "session mine: session is busy: another process of this machine runs it", "--data"},
		{[]string{"serve", "--model", model, "--listen", "127.0.0.1:0"}, "you already run a coordinator serve on this machine", "session"},
		{[]string{"run", "--model", model, "--data", data, "go on"}, "choose another --data", "session mine"},
	} {
		if test.args[0] != "serve" {
			test.args = append(test.args, "--sandbox", "process", "--workspace", t.TempDir())
		}
		cmd := exec.CommandContext(t.Context(), coordinator, test.args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_STATE_HOME="+state)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), test.want)
		require.NotContains(t, string(out), test.not)
	}
}
