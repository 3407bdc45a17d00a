//go:build linux

package confine

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// lastCap is beyond every capability that there is; the kernel says where they end.
const lastCap = 63

// DropBounding empties the bounding set, which takes CAP_SETPCAP: it has to come before
// [DropCaps].
func DropBounding() error {
	for c := range uintptr(lastCap) {
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > 0 {
			return nil // the first one that does not exist
		}
		if err == nil && has != 0 { // somebody may have dropped it already
			err = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	return nil
}

// DropCaps empties the other four sets of the calling thread.
func DropCaps() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("drop capabilities: %w", err)
	}
	return nil
}

// NoNewPrivs makes set-user-ID bits and file capabilities mean nothing.
func NoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no_new_privs: %w", err)
	}
	return nil
}
