//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/capture"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/bounds"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Times of the supervision of a command.
const (
	killWait  = time.Second     // for the first process to kill a command; then it is killed itself
	drainWait = 2 * time.Second // for the output of a command that is gone, on a busy machine
)

// Exec implements [sandbox.Sandbox].
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	i, stop, err := s.begin(ctx)
	if ctxErr := ctx.Err(); ctxErr != nil && !errors.Is(err, sandbox.ErrClosed) {
		if err == nil {
			s.done()
		}
		return sandbox.Result{ExitCode: -1, Reason: start.ContextReason(ctxErr)}, nil
	}
	if err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	defer s.done()
	result, err := s.exec(ctx, i, stop, cmd)
	if result.Reason == sandbox.ReasonLost && s.leaseEnded() {
		result.Reason = sandbox.ReasonCancelled
	}
	if result.Reason == sandbox.ReasonLost {
		s.log.WarnContext(ctx, "sandbox is lost", slog.String("sandbox", s.spec.ID), slog.String("cause", i.postMortem()))
	}
	s.log.DebugContext(ctx, "command ended", slog.String("sandbox", s.spec.ID),
		slog.String("reason", string(result.Reason)), slog.Int("exit_code", result.ExitCode),
		slog.Duration("wall", result.Wall))
	return result, err
}

// leaseEnded reports whether the sandbox's first process has killed everything because its lease
// ended. Its caller may notice that later, and cancels what runs then: one cause has one reason.
func (s *Sandbox) leaseEnded() bool {
	return s.spec.LeaseEnd != nil && !time.Now().Before(s.spec.LeaseEnd())
}

// run is a command that was asked for.
type run struct {
	instance *instance
	bound    *bounds.Bound
	id       uint64
	replies  <-chan *reply
	limits   sandbox.Limits
	out      *capture.Output
	pipes    *capture.Streams
	started  time.Time
}

func (s *Sandbox) exec(ctx context.Context, i *instance, stop <-chan struct{}, cmd sandbox.Cmd) (sandbox.Result, error) {
	if err := errors.Join(start.CheckArgv(cmd.Argv), start.CheckEnv(cmd.Env), start.CheckLimits(cmd.Limits)); err != nil {
		return sandbox.Result{}, err
	}
	if cmd.ReadOnly && i.ready.Landlock < readOnlyABI {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: read-only commands need Landlock of Linux 6.2 or later", s.spec.ID, sandbox.ErrUnsupported)
	}
	r := &run{instance: i, limits: isolation.WithDefaults(isolation.Tighten(s.spec.Limits, cmd.Limits)), started: time.Now()}
	var err error
	if r.bound, err = i.bounds.Enter(r.limits); err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	defer r.bound.Leave()
	r.out = capture.New(r.limits.Output, cmd.Live)
	pipes, err := capture.OpenStreams(cmd, r.out)
	if err != nil {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w", s.spec.ID, err)
	}
	r.pipes = pipes
	request := s.request(cmd, r.limits)
	if !r.bound.Watched() {
		request.Limits.Memory = 0
	}
	if err := r.send(ctx, request); err != nil {
		pipes.Abandon()
		return sandbox.Result{ExitCode: -1, Reason: sandbox.ReasonLost}, nil
	}
	pipes.Run()
	reason, answer := r.supervise(ctx, stop)
	return r.finish(reason, answer)
}

// readOnlyABI is the first version of Landlock that knows truncation.
const readOnlyABI = 3

// request is what the first process is asked for.
func (s *Sandbox) request(cmd sandbox.Cmd, limits sandbox.Limits) wire.Exec {
	env := map[string]string{"HOME": initd.GuestHome, "TMPDIR": initd.GuestTemp}
	if s.spec.Network.Mode == isolation.NetworkProxy {
		maps.Copy(env, proxyEnv())
	}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, cmd.Env)
	return wire.Exec{
		Argv: cmd.Argv, Env: start.Environ(env), Path: env["PATH"], Dir: cmd.Dir, ReadOnly: cmd.ReadOnly, Terminal: cmd.Typed != nil,
		Limits: wire.Limits{
			CPU:       uint64((limits.CPU + time.Second - 1) / time.Second), //nolint:gosec // defaults are not negative
			Memory:    uint64(limits.Memory),                                //nolint:gosec // as above
			OpenFiles: min(uint64(limits.OpenFiles), openFiles()),           //nolint:gosec // as above
			FileSize:  uint64(fileSize(limits)),                             //nolint:gosec // as above
			Disk:      uint64(limits.Disk),                                  //nolint:gosec // as above
		},
	}
}

// openFiles is the most that commands may have open. The kernel counts descriptors that are on
// their way through sockets for each user, and refuses to send more than the sender's limit. So
// commands with the worker's user may have fewer than the worker, which sends some with every
// command.
var openFiles = sync.OnceValue(func() uint64 { //nolint:gochecknoglobals // a constant
	const more = 512 // twice what one message takes
	var own unix.Rlimit
	if os.Geteuid() == 0 || unix.Getrlimit(unix.RLIMIT_NOFILE, &own) != nil {
		return math.MaxUint64 // root has no limit
	}
	return own.Cur - min(own.Cur/2, more)
})

// fileSize bounds a file: no file has to be bigger than all of them may be.
func fileSize(limits sandbox.Limits) int64 {
	if limits.Disk > 0 && (limits.FileSize == 0 || limits.Disk < limits.FileSize) {
		return limits.Disk
	}
	return limits.FileSize
}

func (r *run) send(ctx context.Context, request wire.Exec) (err error) {
	if r.id, r.replies, err = r.instance.register(); err != nil {
		return err
	}
	stdin, stdout, stderr := r.pipes.Command()
	fds := []int{int(stdout.Fd()), int(stderr.Fd())}
	if stdin != nil {
		fds = append(fds, int(stdin.Fd()))
	}
	err = r.instance.sending(ctx, func() error { return r.instance.conn.Send(r.id, wire.KindExec, request, fds...) })
	if err != nil {
		r.instance.blame(err)
		r.instance.forget(r.id)
		return err
	}
	return nil
}

// supervise waits for the end of the command, or ends it. It returns the reason ("" if the command
// ended by itself) and the answer (nil without one).
func (r *run) supervise(ctx context.Context, stop <-chan struct{}) (sandbox.Reason, *reply) {
	var wall <-chan time.Time
	if r.limits.Wall > 0 {
		timer := time.NewTimer(r.limits.Wall)
		defer timer.Stop()
		wall = timer.C
	}
	look, stopLooking := r.bound.Looks()
	defer stopLooking()
	for {
		select {
		case answer := <-r.replies:
			return "", answer
		case <-r.instance.gone:
			return r.gone(stop)
		case <-stop:
			return sandbox.ReasonCancelled, r.kill()
		case <-wall:
			return sandbox.ReasonTimeout, r.terminate(stop)
		case <-ctx.Done():
			return start.ContextReason(ctx.Err()), r.terminate(stop)
		case <-look:
			if _, mine := r.bound.Killed(); mine {
				return sandbox.ReasonOOM, r.kill()
			}
		}
	}
}

// gone is the end of a command whose sandbox is gone: because it was closed, or by itself.
func (r *run) gone(stop <-chan struct{}) (sandbox.Reason, *reply) {
	select {
	case answer := <-r.replies: // the last word
		return "", answer
	case <-stop:
		return sandbox.ReasonCancelled, nil
	default:
	}
	if killed, _ := r.bound.Killed(); killed {
		return sandbox.ReasonOOM, nil // the first process was what the kernel chose
	}
	return sandbox.ReasonLost, nil
}

// terminate asks every process of the command to end, and kills what is left after the
// grace time, or at once when stop is closed.
func (r *run) terminate(stop <-chan struct{}) *reply {
	defer r.killInit(r.limits.Grace + killWait)()
	r.signal(false)
	grace := time.NewTimer(r.limits.Grace)
	defer grace.Stop()
	select {
	case answer := <-r.replies:
		return answer
	case <-r.instance.gone:
	case <-grace.C:
	case <-stop:
	}
	return r.kill()
}

// kill kills the command; the whole sandbox if its first process does not do that in time.
func (r *run) kill() *reply {
	defer r.killInit(killWait)()
	r.signal(true)
	select {
	case answer := <-r.replies:
		return answer
	case <-r.instance.gone:
		return nil
	}
}

// killInit kills the first process, and by that all others, some time from now unless stop is
// called. It also ends the sending of what the first process does not read, which signals wait for.
func (r *run) killInit(after time.Duration) (stop func() bool) {
	return time.AfterFunc(after, func() { _ = r.instance.process.Kill() }).Stop
}

func (r *run) signal(kill bool) {
	// If it cannot be sent, the sandbox is gone, and with it the command.
	_ = r.instance.conn.Send(r.id, wire.KindSignal, wire.Signal{Command: r.id, Kill: kill})
}

// limitKinds returns the mechanism that enforced each limit of the command.
func (r *run) limitKinds() map[string]string {
	return r.bound.Kinds(limitKinds(false)).Words()
}

// finish collects the result.
func (r *run) finish(reason sandbox.Reason, answer *reply) (sandbox.Result, error) {
	wall := time.Since(r.started)
	r.pipes.Finish(drainWait)
	result := sandbox.Result{
		ExitCode: -1, Reason: reason, Wall: wall,
		Stdout: r.out.Captured(sandbox.Stdout), Stderr: r.out.Captured(sandbox.Stderr), Combined: r.out.Combined(),
		LimitKinds: r.limitKinds(),
	}
	if answer == nil {
		return result, nil
	}
	var ended wire.Answer[wire.Ended]
	if err := answer.Decode(&ended); err != nil {
		return result, fmt.Errorf("run: %w", err)
	}
	switch {
	case ended.Fault != nil:
		return sandbox.Result{}, protocol.Errorf(ended.Fault.Code, "%s", ended.Fault.Message)
	case ended.Error != "":
		return result, fmt.Errorf("run: %s", ended.Error) //nolint:err113 // it comes from another process
	}
	if ended.Value.Left {
		_ = r.instance.process.Kill() // the kernel leaves nothing; the next command starts the sandbox again
		<-r.instance.gone
	}
	result.CPU, result.MaxRSS = ended.Value.CPU, ended.Value.MaxRSS
	start.Describe(&result, syscall.WaitStatus(ended.Value.Status), ended.Value.Over, r.limits)
	r.bound.OutOfMemory(&result)
	return result, nil
}
