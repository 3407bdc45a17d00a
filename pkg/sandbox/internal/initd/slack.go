//go:build linux

package initd

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// The Go runtime has a thread that looks 14,000 times a second after what the others do, as long as they do
// anything. In the first process of a sandbox, which mostly waits for a command, that would cost more than the work. So
// the process starts with timers that may be late, which that thread then has, and has them on time in all others.

// Precision of what sleeps, in nanoseconds.
const (
	slack       = 2_000_000 // in the thread that watches
	normalSlack = 50_000    // elsewhere, and the kernel's default
)

// punctual has the timers of this thread be on time, and those of what it starts.
func punctual() {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, normalSlack, 0, 0, 0) // the kernel refuses that to nobody
}

// punctually forks from a thread whose timers are on time, and whose slices of time are the usual ones.
func punctually(fork func() (int, error)) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	punctual()
	defer sliceUsually()()
	return fork()
}
