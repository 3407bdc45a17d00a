//go:build unix

package snapshot

import (
	"errors"
	"os"
	"syscall"
)

// privileged says that modes do not bind this process.
func privileged() bool { return os.Geteuid() == 0 }

// notDirectory says that a part of a path is not a directory.
func notDirectory(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

// notEmpty says that a directory was not removed because something is in it.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}
