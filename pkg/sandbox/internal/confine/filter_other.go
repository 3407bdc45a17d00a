//go:build linux && !amd64 && !arm64

package confine

import (
	"fmt"
	"runtime"
)

// Seccomp fails: there is no filter for this architecture.
func Seccomp() error { return fmt.Errorf("seccomp: no filter for %s", runtime.GOARCH) }

// SeccompReadOnly fails: there is no filter for this architecture.
func SeccompReadOnly() error { return Seccomp() }

// SeccompHost fails: there is no filter for this architecture.
func SeccompHost(...uint32) error { return Seccomp() }
