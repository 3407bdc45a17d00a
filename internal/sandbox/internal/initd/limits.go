//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"strings"

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
