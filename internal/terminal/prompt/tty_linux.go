package prompt

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// resizeSignals are sent when the size of the terminal changes.
func resizeSignals() []os.Signal { return []os.Signal{syscall.SIGWINCH} }

// discardInput discards what was typed on a terminal and has not been read.
func discardInput(terminal *os.File) {
	_ = unix.IoctlSetInt(int(terminal.Fd()), unix.TCFLSH, unix.TCIFLUSH) // fails when the terminal is gone
}

// waitForInput waits for input, or the end of a terminal, for some milliseconds at most. It reports
// false if there is none, or if the system cannot wait.
func waitForInput(terminal *os.File, limit int) bool {
	fds := []unix.PollFd{{Fd: int32(terminal.Fd()), Events: unix.POLLIN}} //nolint:gosec // a descriptor is a small number
	for {
		n, err := unix.Poll(fds, limit)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}
