//go:build linux && !amd64 && !arm64

package confine

import (
	"fmt"
	"runtime"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/syscalls"
)

// AddSeccomp fails: there is no filter for this architecture.
func AddSeccomp(*syscalls.List) error { return Seccomp() }

// AddNoUnix adds nothing: [AddSeccomp], which it takes, fails.
func AddNoUnix(*syscalls.List) {}

// Seccomp fails: there is no filter for this architecture.
func Seccomp() error { return fmt.Errorf("seccomp: no filter for %s", runtime.GOARCH) }

// SeccompReadOnly fails: there is no filter for this architecture.
func SeccompReadOnly() error { return Seccomp() }

// SeccompHost fails: there is no filter for this architecture.
func SeccompHost(...uint32) error { return Seccomp() }

// Untouchable fails: there is no filter for this architecture.
func Untouchable(int) error { return Seccomp() }
