// Package memory knows how much memory this process may use, and bounds its heap by it.
package memory

import (
	"math"
	"runtime/debug"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

// unknown is assumed where neither a control group nor the system says how much there is.
const unknown = 8 << 30

// Available is how much memory this process may use, in bytes: the limit of its control group, else
// the memory of the machine. limited says that it is the former.
func Available() (bytes int64, limited bool) {
	total, err := memlimit.FromSystem()
	if err != nil || total == 0 || total > math.MaxInt64 {
		total = unknown
	}
	if limit, err := memlimit.FromCgroup(); err == nil && limit > 0 && limit < total {
		return int64(limit), true //nolint:gosec // less than total
	}
	return int64(total), false
}

// Bound gives the heap a soft limit, unless GOMEMLIMIT or a caller before has given one: nine
// tenths of a control group's limit, which is for this process, or a quarter of the machine, which
// others use too. Close to the limit the process collects garbage more often.
func Bound() {
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(bound(Available()))
	}
}

// bound is the limit of the heap. Below 64 MiB the process would do nothing but collect garbage.
func bound(bytes int64, limited bool) int64 {
	share := bytes / 4
	if limited {
		share = bytes / 10 * 9
	}
	return max(share, 64<<20)
}

// Limit is the limit of the heap in bytes; [math.MaxInt64] is none.
func Limit() int64 { return debug.SetMemoryLimit(-1) }
