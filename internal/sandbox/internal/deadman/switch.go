//go:build linux

package deadman

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Switch calls a function when its deadline has passed. It has no deadline before [Switch.Extend].
type Switch struct{ timer int }

// New makes a switch for the life of this process. It keeps a thread, which waits in the kernel:
// timers of the Go runtime stand still while the machine is suspended.
func New(expired func()) (*Switch, error) {
	timer, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("dead man's switch: %w", err)
	}
	go func() {
		var times [8]byte
		for {
			if _, err := unix.Read(timer, times[:]); !errors.Is(err, unix.EINTR) {
				expired() // also when the timer fails
				return
			}
		}
	}()
	return &Switch{timer: timer}, nil
}

// Extend sets the deadline, also to an earlier one.
func (s *Switch) Extend(d Deadline) error {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))} // zero would be none
	return unix.TimerfdSettime(s.timer, unix.TFD_TIMER_ABSTIME, &at, nil)
}
