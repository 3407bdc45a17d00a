//go:build unix

package gitguard

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// onlyDirectory opens a directory, and no other file.
const onlyDirectory = unix.O_DIRECTORY

// closed reports whether this user cannot enter a directory, nor allow that.
func closed(path string, info fs.FileInfo) bool {
	stat, known := info.Sys().(*syscall.Stat_t)
	return known && int(stat.Uid) != os.Geteuid() && unix.Access(path, unix.X_OK) != nil
}

// identity is what a directory is known by, on disk, too: another one at its path has another.
type identity struct {
	Dev uint64 `json:"dev"`
	Ino uint64 `json:"ino"`
}

func identityOf(info fs.FileInfo, _ string) identity {
	stat, _ := info.Sys().(*syscall.Stat_t)     // always
	return identity{uint64(stat.Dev), stat.Ino} //nolint:unconvert // it is another type on other systems
}
