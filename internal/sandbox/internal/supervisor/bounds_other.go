//go:build !linux

package supervisor

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Bounds would be the limits of a sandbox's control group, which this system does not have.
type Bounds struct{}

// Bound would be a command in a control group.
type Bound struct{}

// Used reports that there is no group.
func (*Bounds) Used() bool { return false }

// Close does nothing.
func (*Bounds) Close() error { return nil }

// Enter returns a command without bounds.
func (*Bounds) Enter(sandbox.Limits) (*Bound, error) { return &Bound{}, nil }

// Leave does nothing.
func (*Bound) Leave() {}

// Looks returns no times to look at what was killed.
func (*Bound) Looks() (<-chan time.Time, func()) { return nil, func() {} }

// Killed reports that nothing was killed for its memory.
func (*Bound) Killed() (killed, mine bool) { return false, false }

// Watched reports that nothing bounds the command's memory.
func (*Bound) Watched() bool { return true }

// OutOfMemory does nothing.
func (*Bound) OutOfMemory(*sandbox.Result) {}

// Kinds returns kinds.
func (*Bound) Kinds(kinds isolation.LimitKinds) isolation.LimitKinds { return kinds }
