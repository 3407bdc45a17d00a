//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Hard limits are set in a process a moment after it was started, in which it may have started
// others, with soft limits alone, which they could raise. Those are found and limited here; from
// then on whatever is started inherits the limits. A process that is just being made has copied the
// limits already and cannot be seen yet, so this is done again some times later, see chores: the
// making of a process takes some microseconds, if the processors are not busy with others.

// latePasses is how often new processes without limits may be found. Who needs more of them
// does nothing but run away, and is killed.
const latePasses = 50

// limitLate limits what the command has started by now.
func (t *commands) limitLate(c *command) {
	if lastPID() == c.pid {
		return // nobody was started after it
	}
	for range latePasses {
		t.yieldCrowd(c) // or this takes ages
		found := false
		for _, pid := range t.members(c) {
			found = c.limit(pid) || found
		}
		if !found {
			return
		}
	}
	for _, pid := range t.members(c) {
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
	}
}

// lastPIDs is where the kernel tells the process id that was given out last.
var lastPIDs = sync.OnceValues(func() (*os.File, error) { //nolint:gochecknoglobals // of the process
	return os.Open("/proc/sys/kernel/ns_last_pid")
})

// lastPID is the process id that was given out last; 0 when the kernel does not tell.
func lastPID() int {
	file, err := lastPIDs()
	if err != nil {
		return 0
	}
	var text [16]byte
	n, _ := file.ReadAt(text[:], 0) // it is shorter
	pid, err := strconv.Atoi(string(bytes.TrimSpace(text[:n])))
	if err != nil {
		return 0
	}
	return pid
}

// limit sets the limits of the command in a process of it, and reports whether there was
// one that it did not have.
func (c *command) limit(pid int) (changed bool) {
	for _, l := range []resource{
		{unix.RLIMIT_CPU, c.limits.CPU, 1}, // SIGXCPU first, then SIGKILL
		{unix.RLIMIT_DATA, tooFast(c.limits.Memory), 0},
		{unix.RLIMIT_FSIZE, c.limits.FileSize, 0},
		{unix.RLIMIT_NOFILE, c.limits.OpenFiles, 0},
	} {
		var was unix.Rlimit
		if l.value == 0 || unix.Prlimit(pid, l.resource, nil, &was) != nil || was.Max <= l.value+l.more {
			continue
		}
		limit := unix.Rlimit{Cur: min(l.value, was.Cur), Max: l.value + l.more}
		changed = unix.Prlimit(pid, l.resource, &limit, nil) == nil || changed // it may have ended
	}
	return changed
}
