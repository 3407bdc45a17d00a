//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Some things the kernel counts for each user, so that none takes away all there is; and what a
// sandbox has of them it counts for the user who has started it, too, whoever its own user is. So
// one sandbox could leave nothing for others, for the worker, and for every other program of that
// user, who may be root. It gets a part of what the user may have.

// share is how much of it that is: one part in so many.
const share = 8

// maxTerminals is how many a sandbox may have at once. All sandboxes of a host together may have
// some 3,000.
const maxTerminals = 128

// shares are limits that a user namespace has of its own, and those of the host that they are a
// part of.
var shares = map[string]string{ //nolint:gochecknoglobals // a constant
	"/proc/sys/user/max_inotify_instances": "/proc/sys/fs/inotify/max_user_instances",
	"/proc/sys/user/max_inotify_watches":   "/proc/sys/fs/inotify/max_user_watches",
}

// takeShares limits the new user namespace to its part, which takes rights in it. Where the host's
// security module does not allow that, it is not limited.
func (v *view) takeShares() {
	for own, host := range shares {
		most, err := number(host)
		if _, ownErr := os.Stat(own); err != nil || ownErr != nil {
			continue // this kernel does not count it
		}
		text := []byte(strconv.Itoa(max(1, most/share)))
		file := v.Do(unix.SYS_OPENAT, unix.AT_FDCWD, own[1:], unix.O_WRONLY|unix.O_CLOEXEC, 0)
		v.Pass(unix.EACCES)
		v.Do(unix.SYS_WRITE, file, text, len(text))
		v.Pass(unix.EBADF)
		v.Do(unix.SYS_CLOSE, file)
		v.Pass(unix.EBADF)
	}
}

// number reads a setting of the kernel.
func number(name string) (int, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}

// roomForOthers is how many processes of its user a launcher leaves to others, when that user may
// have a limited number.
const roomForOthers = 256

// leaveProcesses has the kernel make no process in a sandbox when that would leave few to the user
// of this process: what it counts in a user namespace it counts for the user who has made that,
// too, and up to the limit of that process. Nobody limits root.
func leaveProcesses() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err
	}
	limit.Cur -= min(limit.Cur/share, roomForOthers)
	return unix.Setrlimit(unix.RLIMIT_NPROC, &limit)
}
