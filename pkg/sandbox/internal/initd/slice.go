//go:build linux

package initd

import (
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/calls"
)

// The scheduler gives the processors in turn, a slice of time each; who has woken up and wants a
// short one comes first. The first process wants little time, but when commands are many, it must
// not wait until each of them has had its turn: it is what makes them yield. So it has the shortest
// slice there is; commands have the usual one. Kernels before Linux 6.12 take no notice of it.

// shortSlice is the shortest slice there is, in nanoseconds.
const shortSlice = 100_000

// sliced says how long the slices of this thread are to be, with the priority that it has; nil when
// it is not one of those that have slices. 0 is the usual length.
func sliced(nanoseconds uint64) *unix.SchedAttr {
	attr, err := unix.SchedGetAttr(0, 0)
	if err != nil || attr.Policy != unix.SCHED_NORMAL {
		return nil
	}
	return &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL, Nice: attr.Nice, Runtime: nanoseconds}
}

// shortSlices adds the call that gives the process that makes it, and what comes of it, short
// slices.
func shortSlices(l *calls.List) {
	if attr := sliced(shortSlice); attr != nil {
		l.Do(unix.SYS_SCHED_SETATTR, 0, unsafe.Pointer(attr), 0)
		l.Pass(unix.EPERM) // it has a lower priority by now
	}
}

// Slices of the first process and of what it forks.
var (
	ownSlices   = sync.OnceValue(func() *unix.SchedAttr { return sliced(shortSlice) }) //nolint:gochecknoglobals // constants
	usualSlices = sync.OnceValue(func() *unix.SchedAttr { return sliced(0) })          //nolint:gochecknoglobals // constants
)

// sliceUsually gives this thread the usual slices, until restore is called.
func sliceUsually() (restore func()) {
	own, usual := ownSlices(), usualSlices()
	if own == nil || usual == nil || unix.SchedSetAttr(0, usual, 0) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetAttr(0, own, 0) } // it was allowed before
}
