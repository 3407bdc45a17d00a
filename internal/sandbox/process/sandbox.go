package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// killWait is how long killed processes may take to be gone. Guards report before that when they
// are not.
const killWait = 6 * time.Second

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Sandbox runs commands without isolation.
type Sandbox struct {
	spec      isolation.Spec
	workspace *files.FS
	scratch   *supervisor.Scratch
	bounds    *supervisor.Bounds
	confined  bool // by driver landlock
	gate      *supervisor.Gate

	mu       sync.Mutex
	leftover []*tree // of commands that could not be killed
}

// FS implements [sandbox.Sandbox].
func (s *Sandbox) FS() sandbox.FS { return sandbox.NewFS(s.workspace.Do) }

// addLeftover remembers processes that could not be killed.
func (s *Sandbox) addLeftover(t *tree) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leftover = append(s.leftover, t)
}

// killAll waits for the commands that are stopping, and tries once more to kill what they left.
func (s *Sandbox) killAll() error {
	s.gate.Wait()
	s.mu.Lock()
	leftover := s.leftover
	s.leftover = nil
	s.mu.Unlock()
	var errs []error
	for _, t := range leftover {
		if err := t.sweep(); err != nil {
			errs = append(errs, err)
			s.addLeftover(t)
		}
	}
	return errors.Join(errs...)
}

// Reset implements [sandbox.Sandbox].
func (s *Sandbox) Reset(ctx context.Context) error {
	return s.gate.Reset(ctx, func() error {
		if err := s.killAll(); err != nil {
			return err
		}
		return s.scratch.Empty()
	})
}

// Close implements [sandbox.Sandbox]. It can be called again after [isolation.ErrLeftover].
func (s *Sandbox) Close() error {
	return s.gate.Close(func() error {
		return errors.Join(s.killAll(), s.bounds.Close(), s.workspace.Close(), s.scratch.Close())
	})
}

// Exec implements [sandbox.Sandbox].
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	return s.gate.Run(ctx, supervisor.Start{}, func(stop <-chan struct{}) (sandbox.Result, error) {
		return s.exec(ctx, cmd, stop)
	})
}

func (s *Sandbox) exec(ctx context.Context, cmd sandbox.Cmd, stop <-chan struct{}) (sandbox.Result, error) {
	if cmd.ReadOnly && !s.confined {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: driver process has no read-only commands", s.spec.ID, sandbox.ErrUnsupported)
	}
	if cmd.Typed != nil && !terminals {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: driver process has no terminals on this system", s.spec.ID, sandbox.ErrUnsupported)
	}
	c, err := s.bounds.Begin(s.spec, cmd)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer c.Bound.Leave()
	t, err := s.start(c, cmd)
	if err != nil {
		return sandbox.Result{}, err
	}
	result, err := finish(c, t, c.Supervise(ctx, stop))
	if err != nil {
		s.addLeftover(t)
		return result, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	return result, nil
}

// start starts a command. The pipes of a command that does not start are closed.
func (s *Sandbox) start(c *supervisor.Command, cmd sandbox.Cmd) (*tree, error) {
	program, dir, err := s.program(cmd)
	if err != nil {
		c.Pipes.Abandon()
		return nil, err
	}
	defer dir.Close()
	stdin, stdout, stderr := c.Pipes.Command()
	if program.Stdout, program.Stderr = stdout, stderr; stdin != nil {
		program.Stdin = stdin
	}
	t := newTree(program, c.Bound)
	c.Signal = t.signal
	limits := c.Limits
	if !c.Bound.Watched() {
		limits.Memory = 0 // the group bounds it
	}
	if err := t.start(s, cmd, limits); err != nil {
		c.Pipes.Abandon()
		return nil, start.Error(cmd.Argv[0], err)
	}
	c.Pipes.Run()
	go func() {
		t.await()
		close(c.Ended)
	}()
	return t, nil
}

// finish waits until no process of the command is left, and collects its result.
func finish(c *supervisor.Command, t *tree, reason sandbox.Reason) (sandbox.Result, error) {
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-c.Ended:
		result := c.Finish(reason, limitKinds())
		t.describe(&result, c.Limits)
		c.Bound.OutOfMemory(&result)
		return result, t.finish()
	case <-timer.C: // the goroutine of start ends with the command
		return c.Finish(reason, limitKinds()), fmt.Errorf("%w: the command does not end", isolation.ErrLeftover)
	}
}

// program builds what cmd asks for. The directory, in which the command is to start, has to stay
// open until then.
func (s *Sandbox) program(cmd sandbox.Cmd) (*exec.Cmd, *os.File, error) {
	dir, err := s.workspace.OpenDir(cmd.Dir)
	if err != nil {
		return nil, nil, err
	}
	env := map[string]string{"HOME": s.scratch.Home(), "TMPDIR": s.scratch.Temp()}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, cmd.Env)
	path, err := start.Lookup(cmd.Argv[0], env["PATH"], dir.Name())
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return &exec.Cmd{Path: path, Args: cmd.Argv, Env: start.Environ(env), Dir: startDir(dir)}, dir, nil
}
