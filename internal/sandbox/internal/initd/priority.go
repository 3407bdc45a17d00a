//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A command that has run for a while makes way for those that have just begun, in this sandbox or
// in another one, and for the worker: most calls are short, and a caller waits for them. It has the
// processors for itself while no other process needs them. Where the scheduler counts sessions
// (autogroup) or the worker has cgroups, they share anyway, and this changes little.

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

// lastPIDs is the file in which the kernel shows the last process id that it assigned.
var lastPIDs = sync.OnceValues(func() (*os.File, error) { //nolint:gochecknoglobals // of the process
	return os.Open("/proc/sys/kernel/ns_last_pid")
})

// lastPID is the last process id that the kernel assigned; 0 when unknown.
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

// reniceStep changes the priority of a command that still runs some time after its start.
type reniceStep struct {
	after time.Duration
	do    func(*commands, *command)
}

// reniceSteps are those of every command, in the order of their times.
func reniceSteps() []reniceStep {
	yield, early := (*commands).yield, (*commands).yieldMany
	return []reniceStep{
		{10 * time.Millisecond, early},
		{25 * time.Millisecond, early},
		{50 * time.Millisecond, early},
		{100 * time.Millisecond, yield},
		{time.Second, yield},
	}
}

// reniceLater takes the steps that are left of a command, one after the other. The caller holds the
// lock.
func (t *commands) reniceLater(c *command, begun time.Time, left []reniceStep) {
	if len(left) == 0 {
		return
	}
	time.AfterFunc(time.Until(begun.Add(left[0].after)), func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[c.id] == c {
			left[0].do(t, c)
			t.reniceLater(c, begun, left[1:])
		}
	})
}

// When memory runs out the kernel kills a process: it shall be a command, not the first process of
// a sandbox, and not the worker. A process may say that it is to be killed before others, and what
// it starts inherits that; so this one says so for the moment of a fork.

// commandScore is what a command has more than the first process, in thousandths of the memory
// there is.
const commandScore = 500

// scoreFile is where the first process has its own.
const scoreFile = "/proc/1/oom_score_adj"

// score is the file of this process's own score; nil when there is none. It has to be opened
// before this process is out of everybody's reach, its own too.
var score *os.File //nolint:gochecknoglobals // of the process

// openScore opens it.
func openScore() (err error) {
	score, err = os.OpenFile(scoreFile, os.O_RDWR, 0)
	return err
}

// raiseScore makes this process, and what it forks, one to be killed early, until restore is
// called.
func raiseScore() (restore func()) {
	var was [8]byte
	n, err := score.ReadAt(was[:], 0)
	if err != nil && n == 0 {
		return func() {}
	}
	now, _ := strconv.Atoi(string(was[:max(n-1, 0)])) // without the line's end
	if _, err := score.WriteAt(strconv.AppendInt(nil, int64(min(now+commandScore, 1000)), 10), 0); err != nil {
		return func() {}
	}
	return func() { _, _ = score.WriteAt(was[:n], 0) } // it is no less than it has been
}
