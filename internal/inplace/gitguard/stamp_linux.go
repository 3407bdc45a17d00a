package gitguard

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stamp of a directory changes when an entry is made or removed there.
type stamp struct {
	dev, ino uint64
	modified time.Time
	changed  time.Time // nobody sets it
}

func stampOf(info fs.FileInfo) (stamp, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, false
	}
	return stamp{stat.Dev, stat.Ino, info.ModTime(), time.Unix(stat.Ctim.Unix())}, true
}

// bornAt is when a file was made, in nanoseconds; 0 where that is not known.
func bornAt(path string) int64 {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BTIME, &stat); err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return stat.Btime.Sec*int64(time.Second) + int64(stat.Btime.Nsec)
}
