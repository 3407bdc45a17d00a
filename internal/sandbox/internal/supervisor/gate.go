// Package supervisor has what the drivers share on the worker's side of a sandbox: the gate through
// which its operations enter, the supervision of one command, its output, the limits of its control
// group, and its scratch directory.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Check returns an error for a sandbox that a driver of this name and level cannot open.
func Check(ctx context.Context, spec isolation.Spec, driver string, level isolation.Level) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if spec.Require > level {
		return fmt.Errorf("%w: driver %s has level %s here, %s is required", isolation.ErrLevel, driver, level, spec.Require)
	}
	return errors.Join(start.CheckEnv(spec.Env), start.CheckLimits(spec.Limits))
}

// Gate admits the operations of a sandbox, its commands and file operations, until it is closed. A
// reset or the close of the sandbox closes the stop channel of the operations that run: commands
// are killed then. Operations that come during a reset wait for its end.
type Gate struct {
	id  string // of the sandbox
	log *slog.Logger

	change sync.Mutex // held by the one Reset, Close or restart at a time

	mu      sync.Mutex
	closed  bool
	reset   chan struct{} // closed when the reset is done; nil when there is none
	stop    chan struct{}
	running sync.WaitGroup
	count   int // of operations that run
}

// NewGate returns the open gate of a sandbox.
func NewGate(id string, log *slog.Logger) *Gate {
	return &Gate{id: id, log: log, stop: make(chan struct{})}
}

// Start is how a driver starts a lost sandbox again; the zero value is for sandboxes that cannot be
// lost. Serves reports whether the sandbox can take an operation. It is called while no other
// operation enters; idle says that none runs. Restart is called when it cannot, with no Reset or
// Close at the same time.
type Start struct {
	Serves  func(idle bool) bool
	Restart func(ctx context.Context) error
}

// Enter counts an operation in, once no reset is under way and the sandbox is ready: Leave follows
// every success. The channel is closed when commands have to be killed.
func (g *Gate) Enter(ctx context.Context, s Start) (stop <-chan struct{}, err error) {
	for {
		stop, reset, err := g.enter(s)
		switch {
		case err != nil || stop != nil:
			return stop, err
		case reset != nil:
			select {
			case <-reset:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		default:
			if err := g.restart(ctx, s); err != nil {
				return nil, err
			}
		}
	}
}

// enter is one try of Enter. It returns the channel of a reset to wait for, or nothing when the
// sandbox has to be started.
func (g *Gate) enter(s Start) (stop, reset <-chan struct{}, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, nil, sandbox.ErrClosed
	case g.reset != nil:
		return nil, g.reset, nil
	case s.Serves != nil && !s.Serves(g.count == 0):
		return nil, nil, nil
	}
	g.running.Add(1)
	g.count++
	return g.stop, nil, nil
}

func (g *Gate) restart(ctx context.Context, s Start) error {
	g.change.Lock()
	defer g.change.Unlock()
	return s.Restart(ctx)
}

// Leave counts an operation out.
func (g *Gate) Leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count--
	g.running.Done()
}

// Locked calls f while no operation enters. closed and idle are the state of the gate.
func (g *Gate) Locked(f func(closed, idle bool)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g.closed, g.count == 0)
}

// Wait waits for the operations that run.
func (g *Gate) Wait() { g.running.Wait() }

// Run runs a command as an operation. One whose context has ended before that is not run.
func (g *Gate) Run(ctx context.Context, s Start, run func(stop <-chan struct{}) (sandbox.Result, error)) (sandbox.Result, error) {
	stop, err := g.Enter(ctx, s)
	if err == nil {
		defer g.Leave()
	}
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, sandbox.ErrClosed) {
		return sandbox.Result{ExitCode: -1, Reason: start.ContextReason(ctxErr)}, nil
	}
	if err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", g.id, err)
	}
	result, err := run(stop)
	g.log.DebugContext(ctx, "command ended", slog.String("sandbox", g.id),
		slog.String("reason", string(result.Reason)), slog.Int("exit_code", result.ExitCode),
		slog.Duration("wall", result.Wall))
	return result, err
}

// Reset has the commands that run killed, waits for all operations, and calls reset. Others enter
// when it has returned.
func (g *Gate) Reset(ctx context.Context, reset func() error) error {
	g.change.Lock()
	defer g.change.Unlock()
	err := ctx.Err()
	if err == nil {
		err = g.beginReset()
	}
	if err == nil {
		defer g.endReset()
		g.running.Wait()
		err = reset()
	}
	if err != nil {
		return fmt.Errorf("reset sandbox %s: %w", g.id, err)
	}
	return nil
}

func (g *Gate) beginReset() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return sandbox.ErrClosed
	}
	g.reset = make(chan struct{})
	close(g.stop)
	return nil
}

func (g *Gate) endReset() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.stop = make(chan struct{})
	}
	close(g.reset)
	g.reset = nil
}

// Close lets no operation in any more, has the commands that run killed, and calls release, which
// waits for them. It can be called again after an error.
func (g *Gate) Close(release func() error) error {
	g.mu.Lock()
	if !g.closed && g.reset == nil {
		close(g.stop)
	}
	g.closed = true
	g.mu.Unlock()
	g.change.Lock()
	defer g.change.Unlock()
	if err := release(); err != nil {
		return fmt.Errorf("close sandbox %s: %w", g.id, err)
	}
	return nil
}
