package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// drainWait is how long the output of a command that is gone may take to be read, on a busy
// machine.
const drainWait = 2 * time.Second

// Command is a command that a driver runs. The driver sets Signal and closes Ended.
type Command struct {
	Limits sandbox.Limits
	Bound  *Bound
	Pipes  *Streams
	// Signal asks every process of the command to end, or kills them.
	Signal func(kill bool)
	// Ended is closed when the command has ended with all that it started, and when nothing more
	// can be known of it.
	Ended chan struct{}

	output  *output
	started time.Time
}

// Begin returns a command that is about to be started under the limits of its sandbox and its own.
// Every success is followed by Bound.Leave.
func (b *Bounds) Begin(spec isolation.Spec, cmd sandbox.Cmd) (*Command, error) {
	if err := errors.Join(start.CheckArgv(cmd.Argv), start.CheckEnv(cmd.Env), start.CheckLimits(cmd.Limits)); err != nil {
		return nil, err
	}
	c := &Command{Limits: isolation.WithDefaults(isolation.Tighten(spec.Limits, cmd.Limits)), Ended: make(chan struct{}), started: time.Now()}
	c.output = newOutput(c.Limits.Output, cmd.Live)
	var err error
	if c.Bound, err = b.Enter(c.Limits); err != nil {
		return nil, fmt.Errorf("run in sandbox %s: %w", spec.ID, err)
	}
	if c.Pipes, err = openStreams(cmd, c.output); err != nil {
		c.Bound.Leave()
		return nil, fmt.Errorf("run in sandbox %s: %w", spec.ID, err)
	}
	return c, nil
}

// Supervise waits for the end of the command, or brings it about: it asks the command to end, and
// kills it after the grace time, or at once when stop is closed. It returns the reason for which it
// did that, "" when the command ended by itself. Killed processes may live for a moment: Ended says
// when none does.
func (c *Command) Supervise(ctx context.Context, stop <-chan struct{}) sandbox.Reason {
	var wall <-chan time.Time
	if c.Limits.Wall > 0 {
		timer := time.NewTimer(c.Limits.Wall)
		defer timer.Stop()
		wall = timer.C
	}
	look, stopLooking := c.Bound.Looks()
	defer stopLooking()
	for {
		select {
		case <-c.Ended:
			return ""
		case <-stop:
			c.Signal(true)
			return sandbox.ReasonCancelled
		case <-wall:
			c.terminate(stop)
			return sandbox.ReasonTimeout
		case <-ctx.Done():
			c.terminate(stop)
			return start.ContextReason(ctx.Err())
		case <-look:
			if _, mine := c.Bound.Killed(); mine {
				c.Signal(true)
				return sandbox.ReasonOOM
			}
		}
	}
}

// terminate asks the command to end, and kills it after the grace time, or at once when stop is
// closed.
func (c *Command) terminate(stop <-chan struct{}) {
	c.Signal(false)
	grace := time.NewTimer(c.Limits.Grace)
	defer grace.Stop()
	select {
	case <-c.Ended:
		return
	case <-grace.C:
	case <-stop:
	}
	c.Signal(true)
}

// Finish reads the rest of the output and returns the result, but for how the command ended. kinds
// are the mechanisms that enforce its limits without a control group.
func (c *Command) Finish(reason sandbox.Reason, kinds isolation.LimitKinds) sandbox.Result {
	wall := time.Since(c.started)
	c.Pipes.Finish(drainWait)
	return sandbox.Result{
		ExitCode: -1, Reason: reason, Wall: wall,
		Stdout: c.output.Captured(sandbox.Stdout), Stderr: c.output.Captured(sandbox.Stderr), Combined: c.output.Combined(),
		LimitKinds: c.Bound.Kinds(kinds).Words(),
	}
}

// Try opens a sandbox in a new directory below parent and calls use, to prove that the driver
// works. It removes the directory. "" is the directory for temporary files.
func Try(parent string, use func(spec isolation.Spec) error) (err error) {
	dir, err := os.MkdirTemp(parent, ".toolfleet-probe-") // hidden, for other entries of parent have names of their own
	if err != nil {
		return fmt.Errorf("a sandbox needs a directory to be tried in, where --data is or in TMPDIR: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	spec := isolation.Spec{ID: "probe", Workspace: filepath.Join(dir, "workspace"), Scratch: filepath.Join(dir, "scratch")}
	if err := errors.Join(os.Mkdir(spec.Workspace, 0o700), os.Mkdir(spec.Scratch, 0o700)); err != nil {
		return err
	}
	return use(spec)
}

// TryWithout tries a driver once more, after err, without something that sandboxes need not have:
// off is what turns it off, and stays set if that works. The capabilities have the warning, and
// why, then.
func TryWithout(off *atomic.Bool, caps isolation.Caps, err error, warning string, try func() (isolation.Caps, error)) (isolation.Caps, error) {
	off.Store(true)
	without, withoutErr := try()
	if withoutErr != nil {
		off.Store(false)
		return caps, err
	}
	without.Warnings = append(without.Warnings, warning+": "+err.Error())
	return without, nil
}

// TryCommand writes a file in a sandbox and runs a command, which has to exit with code.
func TryCommand(ctx context.Context, s sandbox.Sandbox, argv []string, code int) error {
	if _, err := s.FS().Write(ctx, protocol.FilesWrite{Path: "probe.txt", Content: []byte("probe")}); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	result, err := s.Exec(ctx, sandbox.Cmd{Argv: argv})
	if err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	if result.Reason != sandbox.ReasonExited || result.ExitCode != code {
		return fmt.Errorf("a command that exits %d: %s, exit code %d: %s", code, result.Reason, result.ExitCode, result.Stderr.Data)
	}
	return nil
}
