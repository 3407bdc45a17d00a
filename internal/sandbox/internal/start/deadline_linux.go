package start

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A supervisor kills what it runs unless the worker extends its deadline in time:
//
//	worker ── SendDeadlines: whenever it moves ──► supervisor ── Watchdog: none in time ──► kill
//
// A worker that was killed or stopped extends nothing, so its commands end without it. Deadlines
// are times of CLOCK_BOOTTIME, which all processes of a host share and which counts while the
// machine is suspended. A supervisor that was stopped finds its deadline passed when it resumes.

// Deadline is a time of CLOCK_BOOTTIME in nanoseconds, at least 1; 0 means none.
type Deadline int64

// DeadlineAt converts a time. The monotonic clock stops while the machine is suspended, and the
// wall clock can be set: the earlier of the two applies.
func DeadlineAt(end time.Time) Deadline {
	now := Now() // read first: a process that is stopped before the next line is early, not late
	left := min(time.Until(end), end.Round(0).Sub(time.Now().Round(0)))
	return max(now+Deadline(left), 1)
}

// Now returns the current time.
func Now() Deadline {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // Linux has it since 2.6.39
	return Deadline(now.Nano())
}

// Intervals at which SendDeadlines polls.
const (
	minPoll = 10 * time.Millisecond
	maxPoll = time.Second
)

// SendDeadlines sends the deadline whenever it has moved, until send fails or stop is closed. last
// is the deadline that was sent before.
func SendDeadlines(end func() time.Time, last time.Time, stop <-chan struct{}, send func(Deadline) error) {
	for {
		timer := time.NewTimer(min(max(time.Until(last)/8, minPoll), maxPoll))
		select {
		case <-stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		if next := end(); !next.Equal(last) {
			if send(DeadlineAt(next)) != nil {
				return // the supervisor is gone
			}
			last = next
		}
	}
}

// Watchdog calls a function when its deadline has passed. It has no deadline before
// [Watchdog.Extend].
type Watchdog struct{ timer int }

// NewWatchdog starts a watchdog that lasts as long as this process. Its thread waits in the kernel,
// because timers of the Go runtime stop while the machine is suspended.
func NewWatchdog(expired func()) (*Watchdog, error) {
	timer, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watchdog: %w", err)
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
	return &Watchdog{timer: timer}, nil
}

// Extend sets the deadline, also to an earlier one.
func (w *Watchdog) Extend(d Deadline) error {
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(d, 1)))} // zero would disarm it
	return unix.TimerfdSettime(w.timer, unix.TFD_TIMER_ABSTIME, &at, nil)
}
