//go:build unix

package files

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// nonblock makes opening a FIFO return at once.
const nonblock = syscall.O_NONBLOCK

const errQuota = syscall.EDQUOT

// unopenable says that an open failed because of what the file is.
func unopenable(err error) bool { return errors.Is(err, syscall.ENXIO) }

// busy says that a program file cannot be opened for writing while it runs.
func busy(err error) bool { return errors.Is(err, syscall.ETXTBSY) }

// adopt gives file the owner of what info describes. Only root can give files away;
// for others it does nothing.
func adopt(file *os.File, info fs.FileInfo) error {
	uid, gid, ok := owner(info)
	if !ok {
		return nil
	}
	return file.Chown(uid, gid)
}

// adoptDir gives the directory name, just made, the owner of what info describes.
func adoptDir(root *os.Root, name string, info fs.FileInfo) error {
	uid, gid, ok := owner(info)
	if !ok {
		return nil
	}
	return root.Lchown(name, uid, gid)
}

// otherLinks is how many other names a file has.
func otherLinks(info fs.FileInfo) int {
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat {
		return 0
	}
	return max(int(stat.Nlink), 1) - 1 //nolint:gosec // links are counted in far fewer bits
}

func owner(info fs.FileInfo) (uid, gid int, ok bool) {
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !isStat || os.Geteuid() != 0 {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
