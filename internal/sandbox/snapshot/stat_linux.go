package snapshot

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasHoles reports whether a file takes less room than its size.
func hasHoles(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && stat.Blocks*512 < stat.Size
}

// holeAt is how many zeros at an offset of a file are nowhere stored.
func holeAt(file *os.File, from int64) int64 {
	data, err := file.Seek(from, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) { // none is behind it
		if data, err = file.Seek(0, unix.SEEK_END); err == nil && data < from {
			return 0
		}
	}
	if err != nil {
		return 0
	}
	return data - from
}

func stampOf(info fs.FileInfo) (Stamp, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Stamp{}, false
	}
	return Stamp{Size: stat.Size, Mod: stat.Mtim.Nano(), Change: stat.Ctim.Nano(), Inode: stat.Ino}, true
}
