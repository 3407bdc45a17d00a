//go:build linux

package probes

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// getpid80 makes the system call number 20 of 32-bit programs, getpid.
func getpid80() int64

// int80 makes a system call by the ABI of 32-bit programs, whose numbers filters for
// 64 bits misread. Being killed for it is containment.
func int80(canary.Host) canary.Verdict {
	pid := getpid80()
	if pid == -int64(unix.ENOSYS) {
		return contained(unix.ENOSYS)
	}
	if int(int32(pid)) != unix.Getpid() {
		return contained(errors.New("another answer"))
	}
	return escape("32-bit calls pass")
}

// x32 makes a system call with the bit of the x32 ABI.
func x32(canary.Host) canary.Verdict {
	const bit = 0x40000000
	return unlessDone(call(bit | unix.SYS_GETPPID))
}
