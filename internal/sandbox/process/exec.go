package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/capture"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Times of the supervision of a command.
const (
	killWait  = 6 * time.Second // for killed processes to be gone; guards say before that they are not
	drainWait = 2 * time.Second // for the output of a command that is gone, on a busy machine
)

// Exec implements [sandbox.Sandbox].
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	stop, err := s.begin(ctx)
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, sandbox.ErrClosed) {
		if err == nil {
			s.running.Done()
		}
		return sandbox.Result{ExitCode: -1, Reason: start.ContextReason(ctxErr)}, nil
	}
	if err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	defer s.running.Done()
	if cmd.ReadOnly && s.driver.wrap == nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: driver process has no read-only commands", s.spec.ID, sandbox.ErrUnsupported)
	}
	if cmd.Typed != nil && !terminals {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: driver process has no terminals on this system", s.spec.ID, sandbox.ErrUnsupported)
	}
	if err := start.CheckLimits(cmd.Limits); err != nil {
		return sandbox.Result{}, err
	}
	limits := isolation.WithDefaults(isolation.Tighten(s.spec.Limits, cmd.Limits))
	m, err := s.group.Enter(limits)
	if err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	defer m.Leave()
	r, err := s.start(cmd, limits, m)
	if err != nil {
		return sandbox.Result{}, err
	}
	result, err := r.finish(r.supervise(ctx, stop))
	s.log.DebugContext(ctx, "command ended", slog.String("sandbox", s.spec.ID),
		slog.String("reason", string(result.Reason)), slog.Int("exit_code", result.ExitCode),
		slog.Duration("wall", result.Wall))
	if err != nil {
		s.leave(r.tree)
		return result, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	return result, nil
}

// run is a command that was started.
type run struct {
	limits  sandbox.Limits
	tree    *tree
	member  *member
	out     *capture.Output
	pipes   *capture.Streams
	started time.Time
	ended   chan struct{} // closed when the command has ended, with all that it started
	wall    time.Duration // set when ended is closed
}

// start starts a command.
func (s *Sandbox) start(cmd sandbox.Cmd, limits sandbox.Limits, m *member) (*run, error) {
	c, dir, err := s.command(cmd)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	out := capture.New(limits.Output, cmd.Live)
	p, err := capture.OpenStreams(cmd, out)
	if err != nil {
		return nil, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	stdin, stdout, stderr := p.Command()
	if c.Stdout, c.Stderr = stdout, stderr; stdin != nil {
		c.Stdin = stdin
	}
	r := &run{
		limits: limits, out: out, pipes: p, tree: newTree(c, m, cmd.Typed != nil), member: m,
		started: time.Now(), ended: make(chan struct{}),
	}
	status, err := s.driver.newStatus(c)
	if err != nil {
		p.Abandon()
		return nil, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	if !m.Watched() {
		limits.Memory = 0 // the group bounds it
	}
	if err := r.tree.start(limits, s.spec.LeaseEnd); err != nil {
		status.close()
		p.Abandon()
		return nil, start.Error(cmd.Argv[0], err)
	}
	p.Run()
	go func() {
		r.tree.await()
		r.wall = time.Since(r.started)
		close(r.ended)
	}()
	if err := status.became(cmd.Argv[0]); err != nil {
		_, clearErr := r.finish("")
		return nil, errors.Join(err, clearErr)
	}
	return r, nil
}

// supervise waits for the end of the command, or brings it about. It returns the
// reason, "" when the command ended by itself.
func (r *run) supervise(ctx context.Context, stop <-chan struct{}) sandbox.Reason {
	var wall <-chan time.Time
	if r.limits.Wall > 0 {
		timer := time.NewTimer(r.limits.Wall)
		defer timer.Stop()
		wall = timer.C
	}
	look, stopLooking := r.member.Looks()
	defer stopLooking()
	for {
		select {
		case <-r.ended:
			return ""
		case <-stop:
			r.tree.signal(true)
			return sandbox.ReasonCancelled
		case <-wall:
			r.terminate(stop)
			return sandbox.ReasonTimeout
		case <-ctx.Done():
			r.terminate(stop)
			return start.ContextReason(ctx.Err())
		case <-look:
			if _, mine := r.member.Killed(); mine {
				r.tree.signal(true)
				return sandbox.ReasonOOM
			}
		}
	}
}

// terminate asks the command to end, and kills what is left after the grace time, or at once when
// stop is closed.
func (r *run) terminate(stop <-chan struct{}) {
	r.tree.signal(false)
	grace := time.NewTimer(r.limits.Grace)
	defer grace.Stop()
	select {
	case <-r.ended:
		return
	case <-grace.C:
	case <-stop:
	}
	r.tree.signal(true)
}

// finish kills what is left of the command and collects its result.
func (r *run) finish(reason sandbox.Reason) (sandbox.Result, error) {
	err := r.clear()
	r.pipes.Finish(drainWait)
	result := sandbox.Result{
		ExitCode:   -1,
		Reason:     reason,
		Stdout:     r.out.Captured(sandbox.Stdout),
		Stderr:     r.out.Captured(sandbox.Stderr),
		Combined:   r.out.Combined(),
		Wall:       time.Since(r.started),
		LimitKinds: r.member.Kinds(limitKinds()).Words(),
	}
	select {
	case <-r.ended:
		result.Wall = r.wall
		r.tree.describe(&result, r.limits)
	default:
	}
	r.member.OutOfMemory(&result)
	return result, err
}

// clear waits until nothing of the command is left.
func (r *run) clear() error {
	timer := time.NewTimer(killWait)
	defer timer.Stop()
	select {
	case <-r.ended:
		return r.tree.finish()
	case <-timer.C: // the goroutine ends with it
		return fmt.Errorf("%w: the command does not end", isolation.ErrLeftover)
	}
}

// command builds what cmd asks for. The directory, in which the command is to
// start, has to stay open until then.
func (s *Sandbox) command(cmd sandbox.Cmd) (*exec.Cmd, *os.File, error) {
	if err := start.CheckArgv(cmd.Argv); err != nil {
		return nil, nil, err
	}
	if err := start.CheckEnv(cmd.Env); err != nil {
		return nil, nil, err
	}
	dir, err := s.workspace.OpenDir(cmd.Dir)
	if err != nil {
		return nil, nil, err
	}
	env := s.env(cmd.Env)
	path, err := start.Lookup(cmd.Argv[0], env["PATH"], dir.Name())
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	argv := cmd.Argv
	if s.driver.wrap != nil {
		if path, argv, err = s.driver.wrap(cmd, path, argv); err != nil {
			return nil, nil, errors.Join(err, dir.Close())
		}
	}
	return &exec.Cmd{Path: path, Args: argv, Env: start.Environ(env), Dir: startDir(dir)}, dir, nil
}

// env is the complete environment of a command.
func (s *Sandbox) env(extra map[string]string) map[string]string {
	env := map[string]string{"HOME": s.scratch.Home(), "TMPDIR": s.scratch.Temp()}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, extra)
	return env
}

// status is the other end of [guard.StatusFD]; nil without a wrapper.
type status struct{ ours, theirs *os.File }

// newStatus gives a command that is wrapped its descriptor.
func (d *Driver) newStatus(c *exec.Cmd) (*status, error) {
	if d.wrap == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	c.ExtraFiles = []*os.File{theirs}
	return &status{ours: ours, theirs: theirs}, nil
}

// close is for a command that was not started.
func (s *status) close() {
	if s != nil {
		_, _ = s.ours.Close(), s.theirs.Close() // nothing was written
	}
}

// became waits until a wrapped command is the program name, and says why it is not.
func (s *status) became(name string) error {
	if s == nil {
		return nil
	}
	_ = s.theirs.Close() // the command has its own
	defer s.ours.Close()
	text, err := io.ReadAll(io.LimitReader(s.ours, 4096))
	if err != nil || len(text) == 0 {
		return err
	}
	if errno, err := strconv.Atoi(string(text)); err == nil {
		return start.Error(name, syscall.Errno(errno))
	}
	return fmt.Errorf("start %q: %w", name, errors.New(string(text)))
}
