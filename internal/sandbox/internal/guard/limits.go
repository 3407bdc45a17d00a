//go:build linux

package guard

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// limitProcess bounds a process that was just started, and what it will start. The few
// instructions that it has run by then were not bounded: this driver does not isolate.
func limitProcess(pid int, limits sandbox.Limits) {
	set := func(resource int, value uint64) {
		if value > 0 {
			// A limit that is lower already stays: raising it is not permitted.
			_ = unix.Prlimit(pid, resource, &unix.Rlimit{Cur: value, Max: value}, nil)
		}
	}
	if limits.CPU > 0 {
		seconds := uint64((limits.CPU + time.Second - 1) / time.Second)
		// SIGXCPU first, then SIGKILL for those who ignore it.
		_ = unix.Prlimit(pid, unix.RLIMIT_CPU, &unix.Rlimit{Cur: seconds, Max: seconds + 1}, nil)
	}
	set(unix.RLIMIT_DATA, uint64(limits.Memory))      //nolint:gosec // defaults are not negative
	set(unix.RLIMIT_FSIZE, uint64(limits.FileSize))   //nolint:gosec // as above
	set(unix.RLIMIT_NOFILE, uint64(limits.OpenFiles)) //nolint:gosec // as above
}
