//go:build !unix

package snapshot

import (
	"errors"
	"io/fs"
	"syscall"
)

// privileged is true here, for modes say too little to be worth changing.
func privileged() bool { return true }

func notDirectory(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist)
}
