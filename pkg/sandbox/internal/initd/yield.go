//go:build linux

package initd

import (
	"golang.org/x/sys/unix"
)

// A command that has run for a while makes way for those that have just begun, in this sandbox
// or in another one, and for the worker: most calls are short, and somebody waits for them. It
// has the processors for itself as long as nobody else wants them. Where the scheduler counts
// sessions (autogroup) or the worker has cgroups, they share anyway, and this changes little.

// niceness is how much it makes way: a third of the weight of others.
const niceness = 5

// lower is a priority that is so much lower than that of this process.
func lower() int {
	const zero = 20 // the kernel's number for no niceness
	raw, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return niceness
	}
	return zero - raw + niceness
}

// yield lowers the priority of everything of the command, a process group at a time: that
// reaches every thread of it at once. It is done again for what has been started meanwhile in sessions of its
// own, see chores; children in its own inherit it.
func (t *commands) yield(c *command) {
	groups := map[int]bool{c.pid: true}
	for _, pid := range t.members(c) {
		if group, err := unix.Getpgid(pid); err == nil {
			groups[group] = true
		}
	}
	for group := range groups {
		_ = unix.Setpriority(unix.PRIO_PGRP, group, lower()) // it may have ended
	}
}
