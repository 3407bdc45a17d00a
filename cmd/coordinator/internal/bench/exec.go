package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Exec has the calls run a command in the sandboxes of real workers, a sandbox a lane,
// instead of doing nothing.
type Exec struct {
	// Command is what the shell in the sandbox runs; "" for calls that do nothing.
	Command string
	// Driver opens the sandboxes, and Caps is what it has proven.
	Driver isolation.Driver
	Caps   isolation.Caps
	// Data is an empty directory for the workspaces, which the caller removes.
	Data string
}

// ExecBaseline is what a fleet that runs commands is compared with, in the same run.
type ExecBaseline struct {
	// PlainPerS is how often a process of this program starts a shell that does nothing and
	// waits for it, without any sandbox, as many at a time as the fleet can run.
	PlainPerS float64 `json:"plain_processes_per_s"`
	// NoopPerS is calls that do nothing, by the same callers, lanes and workers.
	NoopPerS float64 `json:"noop_calls_per_s"`
	// OpenMS is how long opening the sandboxes took, all of them, in milliseconds.
	OpenMS float64 `json:"open_sandboxes_ms"`
}

// validate refuses what cannot be combined.
func (e *Exec) validate(work, slowLane time.Duration, payload int) error {
	if e.Command == "" {
		return nil
	}
	if work != 0 || slowLane != 0 || payload != 0 {
		return errors.New("--work, --slow-lane and --payload: are of calls that do nothing, not of the commands of --exec")
	}
	return nil
}

// startWorker makes a worker with a sandbox for each lane; overlaps counts commands that run in
// one beside another.
func startWorker(ctx context.Context, nc *nats.Conn, o Options, overlaps *atomic.Int64) (runner, error) {
	return worker.New(ctx, nc, worker.Options{
		Options:  lane.Options{Fleet: o.Fleet, Worker: wire.NewWorkerID("bench"), Keys: o.Keys, Slots: o.Slots, Linger: o.Linger, Logger: o.Logger},
		Settings: sandboxes.Settings{Driver: watchedDriver{Driver: o.Exec.Driver, overlaps: overlaps}, Caps: o.Exec.Caps},
		Data:     o.Exec.Data,
	})
}

// watchedDriver opens sandboxes in which overlapping commands are counted.
type watchedDriver struct {
	isolation.Driver

	overlaps *atomic.Int64
}

// Open implements isolation.Driver.
func (d watchedDriver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	opened, err := d.Driver.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	return &watchedSandbox{Sandbox: opened, overlaps: d.overlaps}, nil
}

type watchedSandbox struct {
	sandbox.Sandbox

	running  atomic.Int32
	overlaps *atomic.Int64
}

// Exec implements sandbox.Sandbox.
func (s *watchedSandbox) Exec(ctx context.Context, cmd sandbox.Cmd) (sandbox.Result, error) {
	if s.running.Add(1) != 1 {
		s.overlaps.Add(1)
	}
	defer s.running.Add(-1)
	return s.Sandbox.Exec(ctx, cmd)
}

// errNotRun says that a call of a baseline went wrong.
var errNotRun = errors.New("a call failed; --log-level debug tells more")

// warm opens every lane's sandbox, and measures what commands are compared with.
func (l *load) warm(ctx context.Context, b *ExecBaseline) (err error) {
	start := time.Now()
	for n := range l.options.Lanes {
		if !l.call(ctx, protocol.NewSessionID(), l.options.key(n), l.options.body()) {
			return fmt.Errorf("open the sandboxes: %w", errNotRun)
		}
	}
	b.OpenMS = micros(time.Since(start)) / 1000
	if l.options.Baseline <= 0 {
		return nil
	}
	var next atomic.Int64
	session := protocol.NewSessionID()
	b.NoopPerS, err = rate(ctx, l.options.Callers, l.options.Baseline, func(int) error {
		if !l.call(ctx, session, l.options.key(int(next.Add(1))%l.options.Lanes), wire.Noop{}) {
			return errNotRun
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("baseline of calls that do nothing: %w", err)
	}
	atOnce := min(l.options.Callers, l.options.Lanes, l.options.Workers*l.options.Slots)
	b.PlainPerS, err = rate(ctx, atOnce, l.options.Baseline, func(int) error { return plainShell(ctx) })
	if err != nil {
		return fmt.Errorf("baseline of plain processes: %w", err)
	}
	return nil
}

// plainShell runs a shell that does nothing. It is not the command of the calls, which nobody
// may have meant for this machine outside of a sandbox.
func plainShell(ctx context.Context) error {
	shell := "bash"
	if _, err := exec.LookPath(shell); err != nil {
		shell = "sh"
	}
	return exec.CommandContext(ctx, shell, "-c", "true").Run()
}
