//go:build linux

package initd

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/syscalls"
)

// TestIdle_EndsWithAParentThatIsKilledAtOnce: a process that stands for a user namespace ends also
// when its parent is killed before it has made its first call.
func TestIdle_EndsWithAParentThatIsKilledAtOnce(t *testing.T) {
	t.Parallel()
	const variable = "TOOLFLEET_TEST_IDLE"
	if os.Getenv(variable) != "" {
		beKilled(t)
		return
	}
	parent := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	parent.Env = append(os.Environ(), variable+"=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	var pid int
	_, err = fmt.Fscanln(out, &pid) // what is left has the other end, too
	require.NoError(t, err)
	require.ErrorContains(t, parent.Wait(), "signal: killed")
	stopped := func() bool { return bytes.Contains(stat(pid), []byte(") T ")) }
	require.Eventually(t, stopped, time.Minute, time.Millisecond, "%s", stat(pid))
	defer func() { _ = unix.Kill(pid, unix.SIGKILL) }()
	require.NoError(t, unix.Kill(pid, unix.SIGCONT))
	gone := func() bool { return len(stat(pid)) == 0 || bytes.Contains(stat(pid), []byte(") Z ")) }
	require.Eventually(t, gone, time.Minute, time.Millisecond, "%s", stat(pid))
}

// stat is what the kernel says of a process; it is empty without one.
func stat(pid int) []byte {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return data
}

// beKilled forks an idle process that stops before its first call, and is killed.
func beKilled(t *testing.T) {
	t.Helper()
	var life [2]int
	require.NoError(t, unix.Pipe2(life[:], unix.O_CLOEXEC))
	l := &syscalls.List{}
	self := l.Do(unix.SYS_GETPID)
	l.Do(unix.SYS_KILL, self, int(unix.SIGSTOP))
	pid, err := idle(l, life).Fork(0, 2, nil)
	require.NoError(t, err)
	_, _ = fmt.Fprintln(os.Stdout, pid)
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGKILL))
}
