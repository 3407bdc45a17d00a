//go:build linux

package probes

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// name is the name of an errno, as in "EPERM".
func name(errno syscall.Errno) string {
	if text := unix.ErrnoName(errno); text != "" {
		return text
	}
	return fmt.Sprintf("errno %d", int(errno))
}

// denied calls every errno but that of a filter or of a missing right a leak: the
// kernel has looked at the arguments, so the call is there to be attacked.
func denied(errno syscall.Errno) canary.Verdict {
	switch errno {
	case 0:
		return escape("done")
	case unix.EPERM, unix.EACCES, unix.ENOSYS:
		return contained(errno)
	default:
		return leak("reached the kernel: " + name(errno))
	}
}

// call makes a system call.
func call(nr uintptr, args ...uintptr) syscall.Errno {
	var a [6]uintptr
	copy(a[:], args)
	_, _, errno := unix.Syscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
	return errno
}
