//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/scratch"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

var _ sandbox.Sandbox = (*Sandbox)(nil)

// Sandbox is a set of namespaces and its first process, which is started again when it
// was lost.
type Sandbox struct {
	spec    sandbox.Spec
	config  wire.Config
	groups  *cgroup.Tree // nil without control groups
	scratch *scratch.Dir
	log     *slog.Logger

	change sync.Mutex // one Reset, Close or restart at a time

	mu        sync.Mutex
	closed    bool
	current   *instance
	resetting chan struct{} // closed when the reset is done; nil when there is none
	stop      chan struct{} // closed to kill the commands that run
	running   sync.WaitGroup
}

func newSandbox(spec sandbox.Spec, config wire.Config, groups *cgroup.Tree, running *instance, dir *scratch.Dir, log *slog.Logger) *Sandbox {
	return &Sandbox{spec: spec, config: config, groups: groups, scratch: dir, log: log, current: running, stop: make(chan struct{})}
}

// FS implements [sandbox.Sandbox]. The operations are done inside of the sandbox.
func (s *Sandbox) FS() sandbox.FS { return sandbox.RemoteFS{Do: s.files} }

func (s *Sandbox) files(ctx context.Context, request *sandbox.FileRequest) (*sandbox.FileReply, error) {
	i, _, err := s.begin(ctx)
	if err != nil {
		return nil, err
	}
	defer s.running.Done()
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
// serves. Every success is followed by running.Done. The channel is closed when commands
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
	case s.current == nil || s.current.lost():
		return nil, nil, nil, nil
	}
	s.running.Add(1)
	return s.current, s.stop, nil, nil
}

// restart starts the sandbox again if it was lost.
func (s *Sandbox) restart(ctx context.Context) error {
	s.change.Lock()
	defer s.change.Unlock()
	s.mu.Lock()
	lost := s.current
	closed := s.closed
	s.mu.Unlock()
	if closed || lost != nil && !lost.lost() {
		return nil // begin looks again
	}
	if lost != nil {
		if err := lost.close(); err != nil {
			return fmt.Errorf("%w: %w", sandbox.ErrLeftover, err)
		}
	}
	fresh, err := open(ctx, s.config, s.groups, s.spec.Limits)
	if err != nil {
		return explain(err)
	}
	fresh.proxy.serve(ctx, s.spec.Network.Serve)
	s.log.WarnContext(ctx, "sandbox was lost and is started again", slog.String("sandbox", s.spec.ID))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = fresh
	return nil
}

// Reset implements [sandbox.Sandbox].
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
	if err := s.quiet(ctx, i); err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	if err := s.scratch.Empty(); err != nil {
		return fmt.Errorf("reset sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}

// quiet kills what is left in the sandbox, or all of it when it does not answer.
func (s *Sandbox) quiet(ctx context.Context, i *instance) error {
	if i == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, killWait)
	defer cancel()
	_, err := i.ask(ctx, func(id uint64) error { return i.conn.Send(id, wire.KindKillAll, nil) })
	if err != nil {
		return i.close() // the next command starts it again
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
	if err := errors.Join(err, s.scratch.Close()); err != nil {
		return fmt.Errorf("close sandbox %s: %w", s.spec.ID, err)
	}
	return nil
}
