package sandboxtest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Freeze is SIGSTOP; it returns when every thread of the process stands still. Until then one that
// has not been told may go on.
func Freeze(tb testing.TB, p *os.Process) {
	tb.Helper()
	require.NoError(tb, p.Signal(syscall.SIGSTOP))
	require.Eventually(tb, func() bool { return still(p.Pid) }, time.Minute, time.Millisecond, "it does not stop")
}

// still reports whether all threads of a process are stopped.
func still(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(dir + "/" + thread.Name() + "/stat")
		if err != nil {
			continue // it has just ended
		}
		if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}
