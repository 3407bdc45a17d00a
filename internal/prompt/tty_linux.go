package prompt

import (
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
