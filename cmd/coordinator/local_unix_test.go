//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/test/processtest"
)

// What a session of this machine asks on its terminal is also answered from another one.
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
}
