//go:build linux

package initd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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
	fork := func() (int, error) { return c.fork(p) }
	if request.ReadOnly {
		s.once.Do(func() { s.readers, s.readersErr = newReaders(s.mounts) })
		if s.readersErr != nil {
			return s.readersErr
		}
		fork = func() (int, error) { return s.readers.fork(func() (int, error) { return c.fork(p) }) }
	}
	err = s.commands.start(c, fork)
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
func openTerminal(m *wire.Message) (*start.Terminal, error) {
	if len(m.FDs) < 3 {
		return nil, fmt.Errorf("%w: a terminal without input", wire.ErrMalformed)
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

// tag marks the processes of a command where they do not look: it is their soft limit of
// real-time processor time, in microseconds, which limits nothing here.
type tag uint64

func newTag() tag { return tag(1<<62 | rand.Uint64()>>2) } //nolint:gosec // unique, not secret

// command is a command that runs.
type command struct {
	id     uint64
	pid    int
	tag    tag
	limits wire.Limits
	memory uint64 // of one process; 0 means no limit

	done   chan struct{} // closed at the end of a command that is watched
	asked  bool          // to end: what it started may take its time
	killed bool          // no more time
	over   sandbox.Reason
	ended  *wire.Ended // how the command itself has ended
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
func newReaders(mounts []isolation.Mount) (*readers, error) {
	r := &readers{work: make(chan func()), err: make(chan error, 1)}
	go r.run(mounts)
	return r, <-r.err
}

func (r *readers) run(mounts []isolation.Mount) {
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
