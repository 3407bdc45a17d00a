package main

import (
	"os"

	"golang.org/x/sys/unix"
)

// dropTyped drops what was typed on a terminal and has not been read.
func dropTyped(terminal *os.File) {
	const reading = 1                                                        // FREAD
	_ = unix.IoctlSetPointerInt(int(terminal.Fd()), unix.TIOCFLUSH, reading) // then it is a terminal no more
}
