//go:build linux

// Package confine takes rights away: capabilities, system calls (seccomp) and files (Landlock). It
// adds the system calls that do so to a [List], for a process that makes them before it executes a
// program. None of it can be undone, and all of it is inherited.
package confine

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// lastCap is beyond every capability that there is; the kernel says where they end.
const lastCap = 63

// AddNoBounding adds to a list what empties the bounding set, which takes CAP_SETPCAP: it has to
// come before [AddNoCaps]. With fresh the list is for the first process of a new user namespace,
// whose set is full; otherwise for a process with this process's set, which may lack some.
func AddNoBounding(l *List, fresh bool) {
	for c := range lastCap {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			return // the first one that does not exist
		}
		if fresh || err != nil || has != 0 {
			l.Do(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
}

// AddNoCaps adds to a list what empties the other four sets of the calling thread.
func AddNoCaps(l *List) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	l.Do(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	l.Do(unix.SYS_CAPSET, unsafe.Pointer(&header), unsafe.Pointer(&none))
}

// AddNoNewPrivs adds to a list what makes set-user-ID bits and file capabilities mean nothing.
func AddNoNewPrivs(l *List) { l.Do(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

// NoCore is the core file limit that prevents core files and the host's crash handler: with 0 the
// kernel would still start that program, as root.
const NoCore = 1

// CoreLimit is [NoCore]; or 0, where this process may have no more for good and the kernel itself
// writes core files, of which there are none then either.
func CoreLimit() (uint64, error) {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &have); err != nil {
		return 0, fmt.Errorf("limit of core files: %w", err)
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		pattern = nil // it may have a handler
	}
	return coreLimit(have.Max, string(pattern))
}

func coreLimit(hard uint64, pattern string) (uint64, error) {
	switch {
	case hard >= NoCore:
		return NoCore, nil
	case pattern == "" || strings.ContainsAny(pattern[:1], "|@"): // a program, or a socket that one listens to
		return 0, errors.New("core files are limited to 0 bytes for good (ulimit -Hc), with which the host's handler of crashes is started for those in sandboxes, too: " +
			"give the worker LimitCORE=1 (systemd), --ulimit core=1 (containers) or a hard limit of 1 in limits.conf")
	default:
		return 0, nil
	}
}
