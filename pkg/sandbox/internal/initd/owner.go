//go:build linux

package initd

import (
	"math/rand/v2"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/calls"
)

// Users of sandboxes on the host, when the worker is root: far from those of people,
// services and containers.
const (
	firstUID = 1 << 30
	countUID = 1 << 29
)

// owner is who owns the directories of a sandbox on disk.
type owner struct{ uid, gid int }

// translation says that what has an owner on disk belongs to a user of the host, who is new and
// owns nothing else, in the mounts that it is given to.
type translation struct {
	host int // user and group
	fd   int // a user namespace
}

// newTranslation makes a translation. Its namespace is that of a process that does nothing, and
// lives only until it is open.
func newTranslation(of owner) (*translation, error) {
	host := firstUID + rand.IntN(countUID) //nolint:gosec // not secret
	c := &cloned{flags: unix.CLONE_NEWUSER, setgroups: true, uids: []ids{{of.uid, host}}, gids: []ids{{of.gid, host}}}
	var idle calls.List
	idle.Do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
	idle.Do(unix.SYS_PPOLL, 0, 0, 0, 0)
	pid, err := idle.Fork(c.flags, -1, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil) // it is ours and dies
	}()
	if err := c.mapUsers(pid); err != nil {
		return nil, err
	}
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return &translation{host: host, fd: fd}, nil
}
