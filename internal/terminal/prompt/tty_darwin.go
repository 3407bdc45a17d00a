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
	const reading = 1                                                        // FREAD
	_ = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCFLUSH, reading) // fails when the terminal is gone
}

// waitForInput does not wait here: terminals cannot be polled on macOS.
func waitForInput(*os.File, int) bool { return false }
