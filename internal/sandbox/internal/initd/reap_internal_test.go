//go:build linux

package initd

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestReap_FreesNoIDBesideAStart: while a command is started, the ids of those that have ended are
// not given out again.
func TestReap_FreesNoIDBesideAStart(t *testing.T) {
	t.Parallel()
	const variable = "TOOLFLEET_TEST_REAP"
	if os.Getenv(variable) == "" { // what is tested waits for every child of its process
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), variable+"=1")
		output, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", output)
		return
	}
	commands := newCommands(nil)
	commands.mu.Lock()
	start := func() int {
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
		require.NoError(t, err)
		return pid
	}
	ended := func(pid int) error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) }
	first := start()
	go commands.reap()
	require.NoError(t, ended(first))
	require.NoError(t, ended(start())) // the end of the first one is noticed by now
	require.NoError(t, ended(first), "its id is free")
	os.Exit(0) // reap never returns
}
