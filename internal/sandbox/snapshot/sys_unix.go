//go:build unix

package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Flags that make opening safe: a FIFO does not block, a link is not followed.
const (
	nonblock = syscall.O_NONBLOCK
	nofollow = syscall.O_NOFOLLOW
)

// privileged says that modes do not bind this process.
func privileged() bool { return os.Geteuid() == 0 }

// notDirectory says that a part of a path is not a directory.
func notDirectory(err error) bool { return errors.Is(err, syscall.ENOTDIR) }

// notEmpty says that a directory was not removed because something is in it.
func notEmpty(err error) bool {
	return errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST)
}

// unopenable says that an open failed because of what the file is.
func unopenable(err error) bool { return errors.Is(err, syscall.ENXIO) }

// ownerOf returns the owner that new files in a directory are to have; ok is false when
// this process cannot give files away.
func ownerOf(info fs.FileInfo) (uid, gid int, ok bool) {
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat || !privileged() {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
