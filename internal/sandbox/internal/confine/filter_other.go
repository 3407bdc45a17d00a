//go:build linux && !amd64 && !arm64

package confine

import (
	"fmt"
	"runtime"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/syscalls"
)

// AddSeccomp fails: there is no filter for this architecture.
func AddSeccomp(*syscalls.List) error { return fmt.Errorf("seccomp: no filter for %s", runtime.GOARCH) }

// AddNoUnix adds nothing: [AddSeccomp], which it takes, fails.
func AddNoUnix(*syscalls.List) {}

// AddReadOnly adds nothing, as [AddNoUnix].
func AddReadOnly(*syscalls.List) {}

// AddHost adds nothing, as [AddNoUnix].
func AddHost(*syscalls.List, []uint32) {}

// Untouchable fails, as [AddSeccomp].
func Untouchable(int) error { return AddSeccomp(nil) }
