//go:build unix

package files

import (
	"errors"
	"io/fs"
	"syscall"
)

const errQuota = syscall.EDQUOT

// busy says that a program file cannot be opened for writing while it runs.
func busy(err error) bool { return errors.Is(err, syscall.ETXTBSY) }

// otherLinks is how many other names a file has.
func otherLinks(info fs.FileInfo) int {
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat {
		return 0
	}
	return max(int(stat.Nlink), 1) - 1 //nolint:gosec // links are counted in far fewer bits
}
