package process

import (
	"math/rand/v2"

	"golang.org/x/sys/unix"
)

// brand marks the processes of one command where they do not look: it is their soft
// limit of real-time CPU time, in microseconds. A limit is inherited through
// everything that a process does to leave its parent, group, session and
// environment, and it can be read even of one that has ended and was not reaped.
// This one limits nothing: it is thousands of years, and for real-time processes only.
type brand uint64

func newBrand() brand { return brand(1<<62 | rand.Uint64()>>2) } //nolint:gosec // unique, not secret

// during has the children that are started by f inherit the brand, if the hard
// limit leaves room for it.
func (b brand) during(f func()) {
	var was unix.Rlimit
	err := unix.Prlimit(0, unix.RLIMIT_RTTIME, nil, &was)
	if err != nil || was.Max < uint64(b) {
		f()
		return
	}
	if unix.Prlimit(0, unix.RLIMIT_RTTIME, &unix.Rlimit{Cur: uint64(b), Max: was.Max}, nil) == nil {
		defer unix.Prlimit(0, unix.RLIMIT_RTTIME, &was, nil) //nolint:errcheck // it was allowed before
	}
	f()
}

// of reports whether a process has the brand.
func (b brand) of(pid int) bool {
	var limit unix.Rlimit
	return unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil && limit.Cur == uint64(b)
}
