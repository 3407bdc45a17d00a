//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel counts some resources for each user, and counts what a sandbox uses for the user who
// started it, too. So one sandbox could use up what other sandboxes, the worker and every other
// program of that user (maybe root) need. It gets a share of the user's limit.

// share is the divisor: a sandbox gets an eighth.
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

// leaveProcesses reserves some processes for the user of this process: the kernel counts processes
// of a user namespace also for the user who created it, up to that user's limit, and then creates
// no process in a sandbox. Root has no limit.
func leaveProcesses() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NPROC, &limit); err != nil {
		return err
	}
	limit.Cur -= min(limit.Cur/share, roomForOthers)
	return unix.Setrlimit(unix.RLIMIT_NPROC, &limit)
}

// System V objects stay until they are removed, and no limit of a process counts them. So they are
// removed here once no command runs: no process could use them, and they would stay as long as the
// sandbox does.

// shared is a kind of what is shared: memory, queues or sets of semaphores.
type shared struct {
	list    string  // a file of /proc/sysvipc
	control uintptr // the system call that removes one
}

// sysV are the kinds.
var sysV = struct{ memory, queues, semaphores shared }{ //nolint:gochecknoglobals // a constant
	shared{"shm", unix.SYS_SHMCTL}, shared{"msg", unix.SYS_MSGCTL}, shared{"sem", unix.SYS_SEMCTL},
}

// Columns of the lists.
const (
	columnID       = 1
	columnAttached = 6 // of memory, as the rest
	columnPages    = 14
	columnSwapped  = 15
)

// rows are the lines of the kind's list, without the heading.
func (s shared) rows() [][]string {
	text, err := os.ReadFile("/proc/sysvipc/" + s.list)
	if err != nil {
		return nil // the kernel does not have it
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

// removeShared removes all System V objects. They belong to this process's user, so it may.
func removeShared() {
	for _, s := range []shared{sysV.memory, sysV.queues, sysV.semaphores} {
		for _, row := range s.rows() {
			const remove = unix.IPC_RMID // 0, so that it does not matter that semctl has it in another place
			_, _, _ = unix.Syscall6(s.control, uintptr(value(row, columnID)), remove, remove, 0, 0, 0)
		}
	}
}

// heldShared is how much shared memory there is that no process has attached, and so no process's
// view shows.
func heldShared() uint64 {
	var total uint64
	for _, row := range sysV.memory.rows() {
		if value(row, columnAttached) == 0 {
			total += value(row, columnPages) + value(row, columnSwapped)
		}
	}
	return total
}

// value is a number of a row; 0 if the row has no such column.
func value(row []string, column int) uint64 {
	if column >= len(row) {
		return 0
	}
	number, _ := strconv.ParseUint(row[column], 10, 64) // 0 is right for anything else
	return number
}

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
