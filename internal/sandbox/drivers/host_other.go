//go:build !linux

package drivers

import (
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Groups returns the control group in which the sandboxes of this process have theirs: there are
// none but on Linux.
func Groups() (dir string, err error) {
	return "", &isolation.UnusableError{Found: "not on this system"}
}

// isolating are the drivers that isolate: none but on Linux.
func isolating(*Options) []isolation.Driver { return nil }
