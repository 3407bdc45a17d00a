//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/scratch"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Sandbox is a set of namespaces and its first process, which is started again when it
// was lost.
type Sandbox struct {
	spec    isolation.Spec
	config  wire.Config
	guard   *guard       // nil when nothing is protected; used by who holds change, or mu and sees that nothing is under way
	groups  *cgroup.Tree // nil without control groups
	scratch *scratch.Dir
	log     *slog.Logger

	change   sync.Mutex // one Reset, Close or restart at a time
	released bool       // whether the directories are, by Close

	operations
}

// operations are the commands and file operations that run, and what stops new ones.
type operations struct {
	mu        sync.Mutex
	closed    bool
	current   *instance
	resetting chan struct{} // closed when the reset is done; nil when there is none
	stop      chan struct{} // closed to kill the commands that run
	running   sync.WaitGroup
	underWay  int // how many operations running counts
}

// start starts the first process. Nothing else is done with the sandbox meanwhile.
func (s *Sandbox) start(ctx context.Context) error {
	var err error
	if s.guard == nil {
		s.guard, err = newGuard(s.config.Workspace, &s.spec)
	} else {
		err = s.guard.look()
	}
	if err != nil {
		return err
	}
	if s.guard != nil {
		s.config.Protected, s.config.Pinned = s.guard.wire(s.guard.protected), s.guard.wire(s.guard.pinned)
		s.link()
	}
	if err := s.linkMounts(); err != nil {
		return err
	}
	fresh, err := open(ctx, s.config, s.groups, s.spec.Limits)
	if err != nil {
		return explain(err)
	}
	fresh.keep(s.spec.LeaseEnd)
	fresh.network.serve(ctx, s.spec.Network)
	s.use(fresh)
	return nil
}

// link makes the links of copies.
func (s *Sandbox) link() {
	for i, place := range s.config.Protected {
		if slices.Contains(s.spec.Copies, place.Path) && s.guard.found[place.Path].Mode().IsRegular() {
			s.config.Protected[i].Link = path.Join(initd.GuestHome, isolation.CopyInHome(place.Path))
		}
	}
}

// linkMounts makes the links in /tmp that lead to mounts. Commands of an earlier start may have put
// something else there.
func (s *Sandbox) linkMounts() error {
	for _, name := range initd.TempLinks(s.config.Mounts) {
		if err := s.scratch.LinkTemp(name, path.Join(initd.HostTemp, name)); err != nil {
			return err
		}
	}
	return nil
}

// use has operations go to i.
func (s *Sandbox) use(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = i
}

// FS implements [sandbox.Sandbox]. The operations are done inside of the sandbox.
func (s *Sandbox) FS() sandbox.FS { return wire.RemoteFS(s.files) }

func (s *Sandbox) files(ctx context.Context, request *wire.FileRequest) (*wire.FileReply, error) {
	i, _, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.done()
	r, err := i.ask(ctx, func(id uint64) error { return i.conn.Send(id, wire.KindFiles, *request) })
	if err != nil {
		return nil, fmt.Errorf("file operation in sandbox %s: %w", s.spec.ID, s.afterClose(err))
	}
	return &r.files, nil
}

// afterClose is err, or that the sandbox was closed if it was.
func (s *Sandbox) afterClose(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return sandbox.ErrClosed
	}
	return err
}

// begin counts an operation in, once no reset is under way, and returns the sandbox that
// serves. Every success is followed by done. The channel is closed when commands
// have to be killed.
func (s *Sandbox) begin(ctx context.Context) (*instance, <-chan struct{}, error) {
	for {
		i, stop, gate, err := s.enter()
		switch {
		case err != nil:
			return nil, nil, err
		case gate != nil:
			select {
			case <-gate:
			case <-ctx.Done():
				return nil, nil, ctx.Err()
			}
		case i == nil:
			if err := s.restart(ctx); err != nil {
				return nil, nil, err
			}
		default:
			return i, stop, nil
		}
	}
}

// enter is one try of begin. gate is set when it has to be repeated after that; nothing is
// when the sandbox has to be started again.
func (s *Sandbox) enter() (i *instance, stop, gate <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, nil, sandbox.ErrClosed
	case s.resetting != nil:
		return nil, nil, s.resetting, nil
	case s.current == nil || s.current.lost() || s.outdated():
		return nil, nil, nil, nil
	}
	s.running.Add(1)
	s.underWay++
	return s.current, s.stop, nil, nil
}

// done counts an operation out.
func (s *Sandbox) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.underWay--
	s.running.Done()
}

// outdated reports whether something that is protected was replaced from outside, and nothing is
// under way that a restart of the sandbox would kill. mu is held.
func (s *Sandbox) outdated() bool { return s.underWay == 0 && s.guard.stale() }

// restart starts the sandbox again if it was lost, or is outdated.
func (s *Sandbox) restart(ctx context.Context) error {
	s.change.Lock()
	defer s.change.Unlock()
	old, why := s.retire()
	if why == "" {
		return nil // begin looks again
	}
	if old != nil {
		if err := old.close(); err != nil {
			s.use(old) // what is left of it is not forgotten
			return fmt.Errorf("%w: %w", isolation.ErrLeftover, err)
		}
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	s.log.WarnContext(ctx, "sandbox is started again", slog.String("sandbox", s.spec.ID), slog.String("reason", why))
	return nil
}

// retire takes the sandbox out of use if it has to be started again, and says why that is. "" is
// that it has not.
func (s *Sandbox) retire() (old *instance, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch old = s.current; {
	case s.closed:
		return nil, ""
	case old == nil || old.lost():
		why = "it was lost"
	case s.outdated():
		why = "what is protected was replaced"
	default:
		return nil, ""
	}
	s.current = nil
	return old, why
}

// Reset implements [sandbox.Sandbox]. It restarts the sandbox, and with it all that is in memory,
// such as /dev/shm.
func (s *Sandbox) Reset(ctx context.Context) error {
	s.change.Lock()
	defer s.change.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	i, ok := s.beginReset()
	if !ok {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, sandbox.ErrClosed)
	}
	defer s.endReset()
	s.running.Wait()
	if i != nil {
		if err := i.close(); err != nil {
			return fmt.Errorf("reset sandbox %s: %w: %w", s.spec.ID, isolation.ErrLeftover, err)
		}
	}
	if err := errors.Join(s.scratch.Empty(), s.start(ctx)); err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}

func (s *Sandbox) beginReset() (*instance, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false
	}
	s.resetting = make(chan struct{})
	close(s.stop)
	return s.current, true
}

func (s *Sandbox) endReset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = make(chan struct{})
	close(s.resetting)
	s.resetting = nil
}

// Close implements [sandbox.Sandbox].
func (s *Sandbox) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	s.change.Lock()
	defer s.change.Unlock()
	s.mu.Lock()
	i := s.current
	s.mu.Unlock()
	var err error
	if i != nil {
		err = i.close()
	}
	s.running.Wait()
	if err := errors.Join(err, s.guard.close(), s.closeDirs()); err != nil {
		return fmt.Errorf("close sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}

// closeDirs closes the directories, once.
func (s *Sandbox) closeDirs() error {
	if s.released {
		return nil
	}
	s.released = true
	return s.scratch.Close()
}
