//go:build unix

package system

import (
	"errors"
	"io/fs"
	"syscall"
)

// Flags that make opening safe: a FIFO or a terminal has no effect, and a link is not followed.
const (
	NonBlock = syscall.O_NONBLOCK | syscall.O_NOCTTY
	NoFollow = syscall.O_NOFOLLOW
)

// Unopenable reports whether an open failed because of what the file is.
func Unopenable(err error) bool { return errors.Is(err, syscall.ENXIO) }

// ids are the user and the group of a file.
func ids(info fs.FileInfo) (uid, gid int, known bool) {
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
