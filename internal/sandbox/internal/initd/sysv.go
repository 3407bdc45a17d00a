//go:build linux

package initd

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// What processes share by System V's means is there until somebody removes it, and no limit of a
// process counts it. So it is removed here once no command runs: nobody is left who could use it,
// and it would stay as long as the sandbox does.

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

// rows are what there is of the kind, but for the heading.
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

// removeShared removes all that is shared. Everything is of this process's user, who may.
func removeShared() {
	for _, s := range []shared{sysV.memory, sysV.queues, sysV.semaphores} {
		for _, row := range s.rows() {
			const remove = unix.IPC_RMID // 0, so that it does not matter that semctl has it in another place
			_, _, _ = unix.Syscall6(s.control, uintptr(value(row, columnID)), remove, remove, 0, 0, 0)
		}
	}
}

// heldShared is how much shared memory there is that no process has attached, which is in nobody's
// view.
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
