//go:build linux

package probes

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// sharedProbes use files of the system, which every sandbox sees, as channels.
func sharedProbes() map[string]probe {
	return map[string]probe{
		"shared/flock":   flockShared,
		"shared/inotify": inotifyShared,
	}
}

// flockShared tries a lock of which somebody outside has a part.
func flockShared(canary.Host) canary.Verdict {
	fd, err := unix.Open(canary.Shared, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return leak("somebody outside has locked " + canary.Shared)
	case err != nil:
		return contained(err)
	}
	return contained(errors.New("nobody else has locked it"))
}

// inotifyShared waits for somebody outside to open a program.
func inotifyShared(canary.Host) canary.Verdict {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return contained(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, canary.Shared, unix.IN_OPEN); err != nil {
		return contained(err)
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); {
		if n, err := unix.Poll(ready, 100); err == nil && n > 0 {
			return leak("somebody outside has opened " + canary.Shared)
		}
	}
	return contained(errors.New("nothing was told"))
}
