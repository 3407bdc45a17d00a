//go:build linux && !amd64 && !arm64

package confine

import (
	"fmt"
	"runtime"
)

// AddSeccomp fails: there is no filter for this architecture.
func AddSeccomp(*List) error { return fmt.Errorf("seccomp: no filter for %s", runtime.GOARCH) }

// AddNoUnix adds nothing: [AddSeccomp], which it takes, fails.
func AddNoUnix(*List) {}

// AddReadOnly adds nothing, as [AddNoUnix].
func AddReadOnly(*List) {}

// AddHost adds nothing, as [AddNoUnix].
func AddHost(*List, []uint32) {}

// Untouchable fails, as [AddSeccomp].
func Untouchable(int) error { return AddSeccomp(nil) }
