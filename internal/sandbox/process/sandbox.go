package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/scratch"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Sandbox runs commands without isolation.
type Sandbox struct {
	spec      isolation.Spec
	workspace *files.FS
	scratch   *scratch.Dir
	group     *group
	driver    *Driver
	log       *slog.Logger

	change    sync.Mutex // one Reset or Close at a time
	ungrouped bool       // whether the group was removed, by Close

	commands
}

// commands are the commands that run, and what stops new ones.
type commands struct {
	mu        sync.Mutex
	closed    bool
	resetting chan struct{} // closed when the reset is done; nil when there is none
	stop      chan struct{} // closed to kill the commands that run
	left      []*tree       // of commands that could not be killed
	running   sync.WaitGroup
}

func newSandbox(spec isolation.Spec, workspace *files.FS, scratch *scratch.Dir, group *group, d *Driver) *Sandbox {
	return &Sandbox{
		spec: spec, workspace: workspace, scratch: scratch, group: group, driver: d, log: d.log,
		commands: commands{stop: make(chan struct{})},
	}
}

// FS implements [sandbox.Sandbox].
func (s *Sandbox) FS() sandbox.FS { return sandbox.NewFS(s.workspace.Do) }

// begin counts a command in, once no reset is under way. Every success is followed
// by running.Done. The channel is closed when the command has to be killed.
func (s *Sandbox) begin(ctx context.Context) (<-chan struct{}, error) {
	for {
		stop, gate, err := s.enter()
		if gate == nil {
			return stop, err
		}
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// enter is one try of begin; gate is set when it has to be repeated after that.
func (s *Sandbox) enter() (stop, gate <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, sandbox.ErrClosed
	}
	if s.resetting != nil {
		return nil, s.resetting, nil
	}
	s.running.Add(1)
	return s.stop, nil, nil
}

// leave remembers processes that could not be killed.
func (s *Sandbox) leave(t *tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, t)
}

// killAll waits for the commands that are stopping, and tries once more to kill what they left.
func (s *Sandbox) killAll() error {
	s.running.Wait()
	s.mu.Lock()
	left := s.left
	s.left = nil
	s.mu.Unlock()
	var errs []error
	for _, t := range left {
		if err := t.sweep(); err != nil {
			errs = append(errs, err)
			s.leave(t)
		}
	}
	return errors.Join(errs...)
}

// Reset implements [sandbox.Sandbox].
func (s *Sandbox) Reset(ctx context.Context) error {
	s.change.Lock()
	defer s.change.Unlock()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	if !s.beginReset() {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, sandbox.ErrClosed)
	}
	defer s.endReset()
	err := s.killAll()
	if err == nil {
		err = s.scratch.Empty()
	}
	if err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}

func (s *Sandbox) beginReset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.resetting = make(chan struct{})
	close(s.stop)
	return true
}

func (s *Sandbox) endReset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop = make(chan struct{})
	close(s.resetting)
	s.resetting = nil
}

// Close implements [sandbox.Sandbox]. It can be called again after [isolation.ErrLeftover].
func (s *Sandbox) Close() error {
	s.change.Lock()
	defer s.change.Unlock()
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.stop)
	}
	s.mu.Unlock()
	if err := errors.Join(s.killAll(), s.closeGroup(), s.workspace.Close(), s.scratch.Close()); err != nil {
		return fmt.Errorf("close sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}

// closeGroup removes the control group, once, with whatever could not be killed before.
func (s *Sandbox) closeGroup() error {
	if s.ungrouped {
		return nil
	}
	s.ungrouped = true
	return s.group.Close()
}
