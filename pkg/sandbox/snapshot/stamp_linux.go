package snapshot

import (
	"io/fs"
	"syscall"
)

func stampOf(info fs.FileInfo) (Stamp, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}, false
	}
	return Stamp{Size: stat.Size, Mod: stat.Mtim.Nano(), Change: stat.Ctim.Nano(), Inode: stat.Ino}, true
}
