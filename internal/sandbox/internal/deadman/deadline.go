//go:build linux

package deadman

import (
	"time"

	"golang.org/x/sys/unix"
)

// Deadline is a time of CLOCK_BOOTTIME in nanoseconds, at least 1; 0 is none.
type Deadline int64

// At translates a time. The monotonic clock stands still while the machine is suspended, and the
// wall clock can be set: the one that gets there first counts.
func At(end time.Time) Deadline {
	now := Now() // looked at first: a process that is stopped before the next line is early, not late
	left := min(time.Until(end), end.Round(0).Sub(time.Now().Round(0)))
	return max(now+Deadline(left), 1)
}

// Now is the present.
func Now() Deadline {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // Linux has it since 2.6.39
	return Deadline(now.Nano())
}

// Times between two looks at whether a deadline has moved.
const (
	mostLooks  = 10 * time.Millisecond
	fewestLook = time.Second
)

// Keep sends a deadline whenever it has moved, until sending fails or stop is closed. last is the
// one that was sent already.
func Keep(end func() time.Time, last time.Time, stop <-chan struct{}, send func(Deadline) error) {
	for {
		timer := time.NewTimer(min(max(time.Until(last)/8, mostLooks), fewestLook))
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		if next := end(); !next.Equal(last) {
			if send(At(next)) != nil {
				return // nobody is there any more
			}
			last = next
		}
	}
}
