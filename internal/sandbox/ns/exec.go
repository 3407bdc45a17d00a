//go:build linux

package ns

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// killWait is how long the first process may take to kill a command, or to read a message; then it
// is killed itself.
const killWait = time.Second

// Exec implements [sandbox.Sandbox].
func (s *Sandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	var i *instance
	return s.gate.Run(ctx, s.ready(&i), func(stop <-chan struct{}) (sandbox.Result, error) {
		result, err := s.exec(ctx, i, stop, cmd)
		if result.Reason == sandbox.ReasonLost && s.leaseEnded() {
			result.Reason = sandbox.ReasonCancelled
		}
		if result.Reason == sandbox.ReasonLost {
			s.log.WarnContext(ctx, "sandbox is lost", slog.String("sandbox", s.spec.ID), slog.String("cause", i.postMortem()))
		}
		return result, err
	})
}

// leaseEnded reports whether the sandbox's first process has killed everything because its lease
// ended. Its caller may notice that later, and cancels what runs then: one cause has one reason.
func (s *Sandbox) leaseEnded() bool {
	return s.spec.LeaseEnd != nil && !time.Now().Before(s.spec.LeaseEnd())
}

// run is a command of the first process.
type run struct {
	*supervisor.Command

	instance *instance
	id       uint64
	answer   *reply        // set before Ended is closed; nil when the sandbox was lost
	killers  []*time.Timer // of the first process, see signal
}

func (s *Sandbox) exec(ctx context.Context, i *instance, stop <-chan struct{}, cmd sandbox.Cmd) (sandbox.Result, error) {
	if cmd.ReadOnly && i.ready.Landlock < readOnlyABI {
		return sandbox.Result{}, fmt.Errorf("run in sandbox %s: %w: read-only commands need Landlock of Linux 6.2 or later", s.spec.ID, sandbox.ErrUnsupported)
	}
	c, err := i.bounds.Begin(s.spec, cmd)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer c.Bound.Leave()
	r := &run{Command: c, instance: i}
	r.Signal = r.signal
	request := s.request(cmd, r.Limits)
	if !r.Bound.Watched() {
		request.Limits.Memory = 0
	}
	if err := r.send(ctx, request); err != nil {
		r.Pipes.Abandon()
		return sandbox.Result{ExitCode: -1, Reason: sandbox.ReasonLost}, nil
	}
	r.Pipes.Run()
	reason := r.Supervise(ctx, stop)
	<-r.Ended
	for _, timer := range r.killers {
		timer.Stop()
	}
	if r.answer == nil && reason == "" {
		reason = r.lost(stop)
	}
	return r.result(reason)
}

// readOnlyABI is the first version of Landlock that knows truncation.
const readOnlyABI = 3

// request is what the first process is asked for.
func (s *Sandbox) request(cmd sandbox.Cmd, limits sandbox.Limits) initd.Exec {
	env := map[string]string{"HOME": initd.GuestHome, "TMPDIR": initd.GuestTemp}
	if s.spec.Network.Mode == isolation.NetworkProxy {
		maps.Copy(env, proxyEnv())
	}
	maps.Copy(env, s.spec.Env)
	maps.Copy(env, cmd.Env)
	bounds := initd.NewLimits(limits)
	bounds.OpenFiles = min(bounds.OpenFiles, openFiles())
	if bounds.Disk > 0 && (bounds.FileSize == 0 || bounds.Disk < bounds.FileSize) {
		bounds.FileSize = bounds.Disk // no file has to be bigger than all of them may be
	}
	return initd.Exec{
		Argv: cmd.Argv, Env: start.Environ(env), Path: env["PATH"], Dir: cmd.Dir, ReadOnly: cmd.ReadOnly, Terminal: cmd.Typed != nil,
		Limits: bounds,
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

// send has the first process start the command.
func (r *run) send(ctx context.Context, request initd.Exec) (err error) {
	var replies <-chan *reply
	if r.id, replies, err = r.instance.register(); err != nil {
		return err
	}
	stdin, stdout, stderr := r.Pipes.Command()
	fds := []int{int(stdout.Fd()), int(stderr.Fd())}
	if stdin != nil {
		fds = append(fds, int(stdin.Fd()))
	}
	err = r.instance.sending(ctx, func() error { return r.instance.conn.Send(r.id, initd.KindExec, request, fds...) })
	if err != nil {
		r.instance.recordFailure(err)
		r.instance.unregister(r.id)
		return err
	}
	go func() {
		r.answer = <-replies
		close(r.Ended)
	}()
	return nil
}

// signal asks the processes of the command to end, or kills them. The first process, and by that
// all others, is killed when the command has not ended in time. That also ends the sending of what
// the first process does not read, which signals wait for.
func (r *run) signal(kill bool) {
	wait := killWait
	if !kill {
		wait += r.Limits.Grace
	}
	r.killers = append(r.killers, time.AfterFunc(wait, func() { _ = r.instance.process.Kill() }))
	// If it cannot be sent, the sandbox is gone, and with it the command.
	_ = r.instance.conn.Send(r.id, initd.KindSignal, initd.Signal{Command: r.id, Kill: kill})
}

// lost is the reason for which a command ended whose sandbox is lost: because it was closed, or by
// itself.
func (r *run) lost(stop <-chan struct{}) sandbox.Reason {
	select {
	case <-stop:
		return sandbox.ReasonCancelled
	default:
	}
	if killed, _ := r.Bound.Killed(); killed {
		return sandbox.ReasonOOM // the first process was what the kernel chose
	}
	return sandbox.ReasonLost
}

// result is the result of a command that has ended.
func (r *run) result(reason sandbox.Reason) (sandbox.Result, error) {
	result := r.Finish(reason, limitKinds(false))
	if r.answer == nil {
		return result, nil
	}
	var ended initd.Answer[initd.Ended]
	if err := r.answer.Decode(&ended); err != nil {
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
	start.Describe(&result, syscall.WaitStatus(ended.Value.Status), ended.Value.Over, r.Limits)
	r.Bound.OutOfMemory(&result)
	return result, nil
}
