//go:build unix

package gitguard

import (
	"io/fs"
	"syscall"

	"golang.org/x/sys/unix"
)

// noWait opens a file without waiting for a writer, as a FIFO would.
const noWait = unix.O_NONBLOCK

// ownerOf is who owns a file; known is false where nothing says so.
func ownerOf(info fs.FileInfo) (uid, gid int, known bool) {
	stat, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, 0, false
	}
	return int(stat.Uid), int(stat.Gid), true
}
