//go:build unix

package gitguard

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Flags that open a directory, and nothing that would be waited for.
const (
	noWait        = unix.O_NONBLOCK
	onlyDirectory = unix.O_DIRECTORY
)

// ownerOf is who owns a file; known is false where nothing says so.
func ownerOf(info fs.FileInfo) (uid, gid int, known bool) {
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}

// closed reports whether this user cannot enter a directory, nor allow that.
func closed(path string, info fs.FileInfo) bool {
	uid, _, known := ownerOf(info)
	return known && uid != os.Geteuid() && unix.Access(path, unix.X_OK) != nil
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
