//go:build linux

package initd

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// exec starts a command; the tree answers when it has ended.
func (s *server) exec(m *Message) {
	if err := s.start(m); err != nil {
		reply(s.conn, m, Ended{}, err)
	}
}

func (s *server) start(m *Message) error {
	var request Exec
	if err := m.Decode(&request); err != nil {
		return err
	}
	if len(m.FDs) < 2 || len(m.FDs) > 3 || len(request.Argv) == 0 {
		return fmt.Errorf("%w: a command with %d descriptors", ErrMalformed, len(m.FDs))
	}
	argv := request.Argv
	dir, name, err := s.directory(request.Dir)
	if err != nil {
		return err
	}
	defer dir.Close() // also if it is nil
	path, err := start.Lookup(argv[0], request.Path, name)
	if err != nil {
		return err
	}
	p := program{
		path: path, argv: argv, env: request.Env, dir: dir, workspace: true, terminal: request.Terminal, group: -1,
		files: []uintptr{s.null.Fd(), uintptr(m.FDs[0]), uintptr(m.FDs[1])},
	}
	if len(m.FDs) > 2 {
		p.files[0] = uintptr(m.FDs[2])
	}
	var screen *start.Terminal
	if request.Terminal {
		if screen, err = openTerminal(m); err != nil {
			return err
		}
		p.files = []uintptr{screen.Command(), screen.Command(), screen.Command()}
	}
	c := &command{id: m.ID, tag: newTag(), limits: request.Limits, memory: dataLimit(request.Limits.Memory)}
	if request.ReadOnly {
		p.confine = s.readOnly
	}
	err = s.commands.start(c, func() (int, error) { return c.fork(p) })
	if screen != nil {
		screen.Started(err == nil)
	}
	if err != nil {
		if _, dirErr := s.files.OpenDir(request.Dir); dirErr != nil {
			return dirErr
		}
		return start.Error(argv[0], err)
	}
	return nil
}

// openTerminal makes a terminal between the pipes of a command, which are not the message's then.
func openTerminal(m *Message) (*start.Terminal, error) {
	if len(m.FDs) < 3 {
		return nil, fmt.Errorf("%w: a terminal without input", ErrMalformed)
	}
	input, output := m.FDs[2], m.FDs[0]
	m.FDs = m.FDs[1:2]
	return start.OpenTerminal(input, output)
}

// directory opens a directory of the workspace and returns its path. The workspace is what its
// path says, whatever is done in it, and need not be open.
func (s *server) directory(p string) (*os.File, string, error) {
	if p == "" {
		return nil, GuestWorkspace, nil
	}
	dir, err := s.files.OpenDir(p)
	if err != nil {
		return nil, "", err
	}
	return dir, dir.Name(), nil
}

// tag identifies a command's processes: children inherit it in their soft limit of real-time
// processor time, in microseconds, which limits nothing here.
type tag uint64

func newTag() tag { return tag(1<<62 | rand.Uint64()>>2) } //nolint:gosec // unique, not secret

// command is a command that runs.
type command struct {
	id     uint64
	pid    int
	tag    tag
	limits Limits
	memory uint64 // of one process; 0 means no limit

	done   chan struct{} // closed at the end of a command that is watched
	asked  bool          // to end: what it started may take its time
	killed bool          // no more time
	over   sandbox.Reason
	ended  *Ended // how the command itself has ended
}

// readOnly adds what keeps a command from changing the workspace.
func (s *server) readOnly(l *confine.List) error {
	change := confine.AccessChange
	rules := []confine.Rule{
		{Path: GuestHome, Access: change},
		{Path: GuestTemp, Access: change},
		{Path: "/dev/shm", Access: change},
		{Path: "/dev", Access: confine.AccessDevices},
		{Path: "/proc", Access: confine.AccessDevices},
	}
	for _, m := range s.mounts {
		if m.Write && m.Cache {
			rules = append(rules, confine.Rule{Path: Guest(m), Access: change})
		}
	}
	rules, err := confine.Existing(rules)
	if err == nil {
		confine.AddLandlockChanges(l, rules)
		confine.AddReadOnly(l)
	}
	return err
}

// program is what a command begins with.
type program struct {
	path      string
	argv, env []string
	dir       *os.File // to start in
	workspace bool     // without dir it starts in the workspace, else where this process is
	files     []uintptr
	terminal  bool                      // the files are one, which becomes its terminal
	group     int                       // descriptor of the control group's directory; -1 is that of this process
	ends      bool                      // it ends with the thread that starts it
	confine   func(*confine.List) error // adds what takes rights away; nil is nothing
}

// fork starts the program. The process sets its limits before it executes the program: they hold
// from the first instruction, for it and all that it starts, and cannot be removed.
func (c *command) fork(p program) (int, error) {
	l := &confine.List{}
	l.Do(unix.SYS_SETSID)
	if p.group >= 0 {
		l.ForkInto(p.group)
	}
	if p.ends {
		l.Do(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, int(unix.SIGKILL))
		l.Do(unix.SYS_TGKILL, l.Do(unix.SYS_GETPPID), os.Getpid(), 0) // fails when this process has ended before that
	}
	for fd, from := range p.files {
		if from != uintptr(fd) {
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
	if p.confine != nil { // before its limit of open files
		if err := p.confine(l); err != nil {
			return 0, err
		}
		l.Step("")
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
func defaultSignals(l *confine.List) {
	byDefault := new(sigaction)
	for sig := 1; sig <= lastSignal; sig++ {
		if sig != int(unix.SIGKILL) && sig != int(unix.SIGSTOP) {
			l.Do(unix.SYS_RT_SIGACTION, sig, unsafe.Pointer(byDefault), 0, 8)
		}
	}
}

// limit adds what limits the process that makes the calls, and tags it.
func (c *command) limit(l *confine.List) error {
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
func begin(l *confine.List) (int, error) {
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
	if failed, ok := confine.Failed(message); ok {
		if err = failed.Errno; failed.Step != "" { // not the fault of the program
			err = errors.New(failed.Error()) //nolint:err113 // it comes from another process
		}
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)    // it may have ended
		_, _ = unix.Wait4(pid, nil, 0, nil) // it is ours
		return 0, err
	}
	return pid, nil
}

// dataLimit is the RLIMIT_DATA of a process whose memory is watched: for one that grows faster than
// it is watched. It is so far above the limit that most are killed for the limit, and do not just
// see an allocation fail.
func dataLimit(memory uint64) uint64 {
	if memory == 0 {
		return 0
	}
	return 2*memory + 512<<20
}
