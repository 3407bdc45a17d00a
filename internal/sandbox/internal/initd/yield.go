//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A command that has run for a while makes way for those that have just begun, in this sandbox
// or in another one, and for the worker: most calls are short, and somebody waits for them. It
// has the processors for itself as long as nobody else wants them. Where the scheduler counts
// sessions (autogroup) or the worker has cgroups, they share anyway, and this changes little.

// niceness is how much it makes way: a third of the weight of others.
const niceness = 5

// A command that is many processes makes way completely, and early: each of them has a fiftieth of
// the weight of others, so that all together they have that of a few. Otherwise this process, too,
// would have to wait for all of them.
const (
	many   = 64
	lowest = 19
)

// lower is a priority that is so much lower than that of this process.
func lower() int {
	const zero = 20 // the kernel's number for no niceness
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return niceness
	}
	return zero - raw + niceness
}

// hasMany reports whether nearly all of the last processes that were started in the sandbox are
// there still, and are many. It takes no longer when they are very many.
func hasMany(c *command) bool {
	last, there := lastPID(), 0
	if last-c.pid < many {
		return false
	}
	for pid := last; pid > last-many; pid-- {
		if unix.Kill(pid, 0) == nil {
			there++
		}
	}
	return there >= many*3/4
}

// yieldMany lowers the priority of a command that has become many processes so soon, of its process
// group at least.
func (t *commands) yieldMany(c *command) {
	if hasMany(c) {
		_ = unix.Setpriority(unix.PRIO_PGRP, c.pid, lowest) // it may have ended
	}
}

// yield lowers the priority of everything of the command, a process group at a time: that reaches
// every thread of it at once. It is done again for what has been started meanwhile in sessions of
// its own, see reniceSteps; children in its own inherit it.
func (t *commands) yield(c *command) {
	priority := lower()
	if hasMany(c) {
		priority = lowest
	}
	groups := map[int]bool{c.pid: true}
	for _, pid := range t.members(c) {
		if group, err := unix.Getpgid(pid); err == nil {
			groups[group] = true
		}
	}
	for group := range groups {
		_ = unix.Setpriority(unix.PRIO_PGRP, group, priority) // it may have ended
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
