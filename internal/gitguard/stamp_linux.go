package gitguard

import (
	"io/fs"
	"syscall"
	"time"
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
