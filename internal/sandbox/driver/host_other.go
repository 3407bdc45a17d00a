//go:build !linux

package driver

import (
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Groups returns the control group in which the sandboxes of this process have theirs: there are
// none but on Linux.
func Groups() (dir string, err error) {
	return "", &isolation.UnusableError{What: isolation.ControlGroups, Found: "not on this system"}
}

// Quotas says why what sandboxes have on disk cannot be bounded by quotas: they are used on Linux
// alone.
func Quotas(string) (dir string, err error) {
	return "", &isolation.UnusableError{What: isolation.Quotas, Found: "not on this system"}
}

// isolating are the drivers that isolate: none but on Linux.
func isolating(*Options) []isolation.Driver { return nil }
