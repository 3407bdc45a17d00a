//go:build linux

package initd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/terminal"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// exec starts a command; the tree answers when it has ended.
func (s *server) exec(m *wire.Message) {
	if err := s.start(m); err != nil {
		reply(s.conn, m, wire.Ended{}, err)
	}
}

func (s *server) start(m *wire.Message) error {
	var request wire.Exec
	if err := m.Decode(&request); err != nil {
		return err
	}
	if len(m.FDs) < 2 || len(m.FDs) > 3 || len(request.Argv) == 0 {
		return fmt.Errorf("%w: a command with %d descriptors", wire.ErrMalformed, len(m.FDs))
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
	attr := &syscall.ProcAttr{
		Dir: name, Env: request.Env,
		Files: []uintptr{s.null.Fd(), uintptr(m.FDs[0]), uintptr(m.FDs[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	}
	if len(m.FDs) > 2 {
		attr.Files[0] = uintptr(m.FDs[2])
	}
	var screen *terminal.Terminal
	if request.Terminal {
		if screen, err = openTerminal(m); err != nil {
			return err
		}
		attr.Files = []uintptr{screen.Command(), screen.Command(), screen.Command()}
		attr.Sys.Setctty = true // it is descriptor 0 of the command
	}
	if dir != nil {
		attr.Dir = fmt.Sprintf("/proc/self/fd/%d", dir.Fd())
	}
	c := &command{id: m.ID, brand: newBrand(), limits: request.Limits}
	fork := func() (int, error) { return syscall.ForkExec(path, argv, attr) }
	if request.ReadOnly {
		s.once.Do(func() { s.readers, s.readersErr = newReaders(s.mounts) })
		if s.readersErr != nil {
			return s.readersErr
		}
		direct := fork
		fork = func() (int, error) { return s.readers.fork(direct) }
	}
	err = s.commands.start(c, fork)
	runtime.KeepAlive(dir)
	if screen != nil {
		screen.Started(err == nil)
	}
	if err != nil {
		if _, dirErr := s.files.OpenDir(request.Dir); dirErr != nil {
			return dirErr
		}
		return start.Fault(argv[0], err)
	}
	return nil
}

// openTerminal makes a terminal between the pipes of a command, which are not the message's then.
func openTerminal(m *wire.Message) (*terminal.Terminal, error) {
	if len(m.FDs) < 3 {
		return nil, fmt.Errorf("%w: a terminal without input", wire.ErrMalformed)
	}
	input, output := m.FDs[2], m.FDs[0]
	m.FDs = m.FDs[1:2]
	return terminal.Open(input, output)
}

// directory opens a directory of the workspace and tells its path. The workspace itself is what its
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

// brand marks the processes of a command where they do not look: it is their soft limit of
// real-time processor time, in microseconds, which limits nothing here.
type brand uint64

func newBrand() brand { return brand(1<<62 | rand.Uint64()>>2) } //nolint:gosec // unique, not secret

// command is a command that runs.
type command struct {
	id     uint64
	pid    int
	brand  brand
	limits wire.Limits

	done   chan struct{} // closed at the end of a command that is watched
	asked  bool          // to end: what it started may take its time
	killed bool          // no more time
	over   sandbox.Reason
	ended  *wire.Ended // how the command itself has ended
}

// during forks with the brand and the limits of the command. The soft limits are set here for
// the moment of the fork, and inherited: they hold from the first instruction. The hard ones,
// which this process could not take back, are set in the process that comes of it, some
// microseconds after it has started; limitLate sees to what it has started by then.
func (c *command) during(fork func() (int, error)) (int, error) {
	for _, l := range c.early() {
		restore, err := l.here()
		if err != nil {
			return 0, err
		}
		defer restore()
	}
	defer raiseScore()()
	pid, err := fork()
	if err != nil {
		return 0, err
	}
	c.limit(pid)
	return pid, nil
}

// fewFiles is how many descriptors this process never has at once.
const fewFiles = 512

// early are the limits that this process can have for the moment of a fork. It holds far less
// memory, and no file is written meanwhile, see start.
func (c *command) early() []resource {
	limits := []resource{
		{unix.RLIMIT_RTTIME, uint64(c.brand), 0},
		{unix.RLIMIT_CPU, c.limits.CPU, 0},
		{unix.RLIMIT_DATA, tooFast(c.limits.Memory), 0},
		{unix.RLIMIT_FSIZE, c.limits.FileSize, 0},
	}
	if c.limits.OpenFiles >= fewFiles {
		limits = append(limits, resource{unix.RLIMIT_NOFILE, c.limits.OpenFiles, 0})
	}
	return limits
}

// tooFast is the memory of a process that grows faster than it is watched. It is so far above
// the limit that most are killed for the limit, and do not just see an allocation fail.
func tooFast(memory uint64) uint64 {
	if memory == 0 {
		return 0
	}
	return 2*memory + 512<<20
}

// resource is a limit of the kernel.
type resource struct {
	resource int
	value    uint64 // 0 is none
	more     uint64 // of the hard limit
}

// here sets the soft limit of this process, until restore is called.
func (r resource) here() (restore func(), err error) {
	if r.value == 0 {
		return func() {}, nil
	}
	var was unix.Rlimit
	if err := unix.Prlimit(0, r.resource, nil, &was); err != nil {
		return nil, err
	}
	if err := unix.Prlimit(0, r.resource, &unix.Rlimit{Cur: min(r.value, was.Max), Max: was.Max}, nil); err != nil {
		return nil, err
	}
	return func() { _ = unix.Prlimit(0, r.resource, &was, nil) }, nil // it was allowed before
}

// readers is a thread that may not change the workspace, nor may what it starts. It
// is made when it is first needed.
type readers struct {
	work chan func()
	err  chan error
}

// fork runs f on the thread.
func (r *readers) fork(f func() (int, error)) (int, error) {
	type result struct {
		pid int
		err error
	}
	done := make(chan result, 1)
	r.work <- func() {
		pid, err := f()
		done <- result{pid, err}
	}
	got := <-done
	return got.pid, got.err
}

// newReaders makes the thread.
func newReaders(mounts []sandbox.Mount) (*readers, error) {
	r := &readers{work: make(chan func()), err: make(chan error, 1)}
	go r.run(mounts)
	return r, <-r.err
}

func (r *readers) run(mounts []sandbox.Mount) {
	runtime.LockOSThread() // for ever: the thread ends with the goroutine
	change := confine.AccessChange
	rules := []confine.Rule{
		{Path: GuestHome, Access: change},
		{Path: GuestTemp, Access: change},
		{Path: "/dev/shm", Access: change},
		{Path: "/dev", Access: confine.AccessDevices},
		{Path: "/proc", Access: confine.AccessDevices},
	}
	for _, m := range mounts {
		if m.Write && m.Cache {
			rules = append(rules, confine.Rule{Path: Guest(m), Access: change})
		}
	}
	err := step("read-only", func() error { return confine.LandlockChanges(rules) })
	if err == nil {
		err = confine.SeccompReadOnly()
	}
	r.err <- err
	if err != nil {
		return
	}
	for work := range r.work {
		work()
	}
}
