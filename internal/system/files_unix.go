//go:build unix

package system

import (
	"errors"
	"io/fs"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
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

// mostFiles is more than any listener here needs.
const mostFiles = 1 << 20

// OpenFiles is how many files this process may have open. Connections count as such, so a listener
// takes only a share of them: a process without any can store nothing.
func OpenFiles() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return mostFiles
	}
	return int(min(uint64(limit.Cur), mostFiles)) //nolint:gosec,unconvert,nolintlint // it is signed on some systems
}

// Detach has a command lead a session of its own: what is typed at a terminal does not end it.
func Detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }
