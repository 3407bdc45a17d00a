package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCall_LeavesNothing: a call of no session in a fleet leaves no workspace; one of a session
// does.
func TestCall_LeavesNothing(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	data := t.TempDir()
	start(t, worker, launch{args: append([]string{"--sandbox", "process", "--data", data}, b.flags...)}).waitFor(t, `takes calls of pool default`)
	call := func(flags ...string) {
		args := append(append([]string{"call"}, flags...), b.flags...)
		got := execute(t, coordinator, launch{args: append(args, "write", `{"path":"a","content":"x"}`)})
		require.Equal(t, 0, got.code, got.stderr)
		require.Empty(t, got.stderr)
	}
	call("--session", "mine")
	call()
	entries, err := os.ReadDir(filepath.Join(data, "sandboxes"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "mine", entries[0].Name())
}

// TestSession_InUse: a session whose call runs is in use, and open when its process was lost.
func TestSession_InUse(t *testing.T) {
	t.Parallel()
	b := newBroker(t)
	startWorkers(t, 1, b.flags)
	gate := filepath.Join(t.TempDir(), "gate")
	model := script(t, say("", bash("c1", "until [ -e '"+gate+"' ]; do sleep 0.05; done")), say("Done."))
	p := start(t, coordinator, launch{args: append([]string{"run", "--session", "live", "--model", model, "go"}, b.flags...)})
	state := func() string {
		got := execute(t, coordinator, launch{args: append([]string{"session", "show", "--json", "live"}, b.flags...)})
		var info struct{ State string }
		_ = json.Unmarshal([]byte(got.stdout), &info) // there is none yet
		return info.State
	}
	require.Eventually(t, func() bool { return state() == "in_use" }, patience, perProcess)
	require.NoError(t, os.WriteFile(gate, nil, 0o600))
	require.Equal(t, 0, p.wait(t), p)
	require.Equal(t, "answered", state())
}
