// Package process is the sandbox driver that isolates nothing: commands are plain processes of this
// program's user, with its files, network and rights. It is for code that is trusted as much as the
// worker is, and never chosen by itself.
//
// What it does promise:
//
//   - a clean environment: Spec.Env, HOME and TMPDIR in the scratch directory when they
//     are absent, and Cmd.Env;
//   - a start in a directory of the workspace, and file operations confined to it;
//   - bounded time and output, and on Linux, for each process, bounded processor time,
//     memory, files and open files, from its first instruction;
//   - the end of a command is the end of everything that it started, and
//   - on Linux a command ends with the worker and with the worker's lease (Spec.LeaseEnd).
//
// The last two are the work of a guard (package initd), a process for each command:
//
//	worker ──exec──► guard ──fork──► command ──► ...
//	   │ ◄─control socket─┘  adopts what loses its parent
//
// The guard is a child subreaper, so all processes of the command are its descendants, even those
// that try to hide, and without a child left all have ended. It kills them when the command has
// ended, when the worker asks, when the control socket closes because the worker is gone, and when
// the lease has ended. It leads a session of its own: signals that stop the worker do not stop it.
// A command of this driver may kill its guard as it may kill the worker. Then the command itself
// ends, and what it has started continues.
//
// Where the system has handed control groups to this program (package cgroup), each sandbox has
// one. Memory and processes are then bounded together.
//
// The worker itself does file operations. If it was stopped in the middle of one, it finishes it
// when it resumes, also after its lease.
//
// On other systems there is no guard: the process group is killed, daemons that left it survive,
// and commands survive the worker; on Windows only the command itself is killed.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/toolfleet/toolfleet/internal/sandbox/files"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// The names of the drivers.
const (
	Name         = "process"
	LandlockName = "landlock" // on Linux
)

// Options are the settings of a [Driver]; nil and zero mean the defaults.
type Options struct {
	// Logger gets what happens to commands, at debug level; nil discards it.
	Logger *slog.Logger
}

var _ isolation.Driver = (*Driver)(nil)

// Driver opens sandboxes that isolate nothing.
type Driver struct {
	name  string
	level isolation.Level
	log   *slog.Logger
}

// ungrouped says that control groups turned out to be of no use.
var ungrouped atomic.Bool //nolint:gochecknoglobals // groups are the process's, not a driver's

// New returns the driver.
func New(options *Options) *Driver {
	d := &Driver{name: Name, log: slog.New(slog.DiscardHandler)}
	if options != nil && options.Logger != nil {
		d.log = options.Logger
	}
	return d
}

// Name implements [isolation.Driver].
func (d *Driver) Name() string { return d.name }

// Probe implements [isolation.Driver]: it runs a command and writes a file.
func (d *Driver) Probe(ctx context.Context) (caps isolation.Caps, err error) {
	caps, err = d.tryOut(ctx)
	if err == nil || caps.Limits.Memory != isolation.LimitCgroup || ctx.Err() != nil {
		return caps, err
	}
	const warning = "control groups are not used, for a command does not start in one"
	return supervisor.TryWithout(&ungrouped, caps, err, warning, func() (isolation.Caps, error) { return d.tryOut(ctx) })
}

// tryOut tries a sandbox, in a control group if there is one.
func (d *Driver) tryOut(ctx context.Context) (isolation.Caps, error) {
	caps := isolation.Caps{
		Driver: Name, Level: isolation.LevelNone, Limits: limitKinds(), HostUID: true,
		Networks: []isolation.NetworkMode{isolation.NetworkAll}, Warnings: warnings(),
	}
	err := supervisor.Try("", func(spec isolation.Spec) (err error) {
		s, err := d.open(ctx, spec)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		if s.bounds.Used() {
			caps.Limits.Memory, caps.Limits.Processes = isolation.LimitCgroup, isolation.LimitCgroup
		}
		shell := []string{"/bin/sh", "-c"}
		if runtime.GOOS == "windows" {
			shell = []string{"cmd", "/c"}
		}
		const code = 7
		return supervisor.TryCommand(ctx, s, append(shell, "exit 7"), code)
	})
	if err != nil {
		err = fmt.Errorf("probe: %w", err)
	}
	return caps, err
}

func warnings() []string {
	all := []string{
		"driver process isolates nothing: commands have the user, files, network and processes of the worker; " +
			"use it only for code that is trusted as much as the worker",
	}
	if treeWarning != "" {
		all = append(all, treeWarning)
	}
	return all
}

// Open implements [isolation.Driver].
func (d *Driver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	s, err := d.open(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("open sandbox %s: %w", spec.ID, err)
	}
	return s, nil
}

func (d *Driver) open(ctx context.Context, spec isolation.Spec) (*Sandbox, error) {
	if err := errors.Join(supervisor.Check(ctx, spec, d.name, d.level), d.check(spec)); err != nil {
		return nil, err
	}
	scratch, err := supervisor.OpenScratch(spec.Scratch)
	if err != nil {
		return nil, err
	}
	workspace, err := files.Open(spec.Workspace)
	if err != nil {
		return nil, errors.Join(err, scratch.Close())
	}
	bounds, err := newBounds(spec.Limits)
	if err != nil {
		return nil, errors.Join(err, scratch.Close(), workspace.Close())
	}
	return &Sandbox{
		spec: spec, workspace: workspace, scratch: scratch, bounds: bounds, confined: d.level > isolation.LevelNone,
		gate: supervisor.NewGate(spec.ID, d.log),
	}, nil
}

// check refuses what cannot be enforced, nor even be pretended: a proxy that nothing has to use,
// protected places, and host files under other names. That driver process does not cut off the
// network, and that mounts are writable, is what its warning is about.
func (d *Driver) check(spec isolation.Spec) error {
	if spec.Network.Mode == isolation.NetworkProxy {
		return fmt.Errorf("%w: driver %s has no network mode %q", sandbox.ErrUnsupported, d.name, spec.Network.Mode)
	}
	if len(spec.Protect)+len(spec.Copies) > 0 {
		reason := ""
		if d.level > isolation.LevelNone {
			reason = ": Landlock allows a directory with all that is in it, and takes nothing of that back"
		}
		return fmt.Errorf("%w: driver %s cannot protect %s%s", sandbox.ErrUnsupported, d.name, strings.Join(spec.Protect, ", "), reason)
	}
	for _, m := range spec.Mounts {
		if m.Guest != "" && filepath.Clean(m.Guest) != filepath.Clean(m.Host) {
			return fmt.Errorf("%w: driver %s cannot show %q as %q", sandbox.ErrUnsupported, d.name, m.Host, m.Guest)
		}
	}
	return nil
}
