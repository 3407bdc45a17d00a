//go:build linux

package initd

import (
	"io"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/calls"
)

// program is what a command begins with.
type program struct {
	path      string
	argv, env []string
	dir       *os.File // to start in
	workspace bool     // without dir it starts in the workspace, else where this process is
	files     []uintptr
	terminal  bool // the files are one, which becomes its terminal
	group     int  // descriptor of the control group's directory; -1 is that of this process
	ends      bool // it ends with the thread that starts it
}

// fork starts the program. The process sets its limits before it executes the program: they hold
// from the first instruction, for it and all that it starts, and cannot be removed.
func (c *command) fork(p program) (int, error) {
	l := &calls.List{}
	l.Do(unix.SYS_SETSID)
	if p.group >= 0 {
		l.ForkInto(p.group)
	}
	if p.ends {
		l.Do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
		l.Do(unix.SYS_TGKILL, l.Do(unix.SYS_GETPPID), os.Getpid(), 0) // fails when this process has ended before that
	}
	for fd, from := range p.files {
		if from != uintptr(fd) { //nolint:gosec // not negative
			l.Do(unix.SYS_DUP3, from, fd, 0)
		}
	}
	if p.terminal {
		l.Do(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	switch {
	case p.dir != nil:
		l.Do(unix.SYS_FCHDIR, p.dir.Fd())
	case p.workspace:
		l.Do(unix.SYS_CHDIR, GuestWorkspace)
	}
	if err := c.limit(l); err != nil {
		return 0, err
	}
	defaultSignals(l)
	l.RestoreSignals()
	l.Do(unix.SYS_EXECVE, p.path, list(p.argv...), list(p.env...))
	pid, err := begin(l)
	runtime.KeepAlive(p.dir)
	return pid, err
}

// defaultSignals adds what has a process not ignore the signals that this one ignores.
func defaultSignals(l *calls.List) {
	byDefault := new(sigaction)
	for sig := 1; sig <= lastSignal; sig++ {
		if sig != int(unix.SIGKILL) && sig != int(unix.SIGSTOP) {
			l.Do(unix.SYS_RT_SIGACTION, sig, unsafe.Pointer(byDefault), 0, 8)
		}
	}
}

// limit adds what limits the process that makes the calls, and tags it.
func (c *command) limit(l *calls.List) error {
	for _, limit := range []struct {
		resource    int
		value, more uint64 // 0 is none; more of the hard limit
	}{
		{unix.RLIMIT_RTTIME, uint64(c.tag), 0},
		{unix.RLIMIT_CPU, c.limits.CPU, 1}, // SIGXCPU first, then SIGKILL
		{unix.RLIMIT_DATA, c.memory, 0},
		{unix.RLIMIT_FSIZE, c.limits.FileSize, 0},
		{unix.RLIMIT_NOFILE, c.limits.OpenFiles, 0},
	} {
		if limit.value == 0 {
			continue
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(limit.resource, &own); err != nil {
			return err
		}
		limits := &unix.Rlimit{Cur: min(limit.value, own.Max), Max: min(limit.value+limit.more, own.Max)}
		l.Do(unix.SYS_PRLIMIT64, 0, limit.resource, unsafe.Pointer(limits), 0)
	}
	return nil
}

// begin forks a process that makes the calls, and waits for the last one, which executes a program.
func begin(l *calls.List) (int, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return 0, err
	}
	told := os.NewFile(uintptr(ends[0]), "start")
	defer told.Close()
	restore := raiseScore()
	pid, err := l.Fork(0, ends[1], nil)
	restore()
	_ = unix.Close(ends[1]) // the process has its own
	if err != nil {
		return 0, err
	}
	message, err := io.ReadAll(told)
	if failed, ok := calls.Failed(message); ok {
		err = failed.Errno
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)    // it may have ended
		_, _ = unix.Wait4(pid, nil, 0, nil) // it is ours
		return 0, err
	}
	return pid, nil
}

// dataLimit is the RLIMIT_DATA of a process whose memory is watched: for one that grows faster than it
// is watched. It is so far above the limit that most are killed for the limit, and do not just see an
// allocation fail.
func dataLimit(memory uint64) uint64 {
	if memory == 0 {
		return 0
	}
	return 2*memory + 512<<20
}
