//go:build linux

package initd

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// The Go runtime looks 14,000 times a second after what goes on while anything does. In the first process of a
// sandbox, which does nothing but wait most of that time, this would cost more than the work. What sleeps there
// may oversleep; commands have the precision that they would have elsewhere.

// Precision of what sleeps, in nanoseconds.
const (
	slack       = 5_000_000 // in the first process
	normalSlack = 50_000    // in commands, and the kernel's default
)

// punctual forks with the usual precision of timers.
func punctual(fork func() (int, error)) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, normalSlack, 0, 0, 0) // the kernel refuses that to nobody
	defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0) }()
	return fork()
}
