//go:build linux

// Package landlock is the weaker sandbox driver, for hosts that allow no user namespaces: commands
// are processes of the host, of the worker's user, that drop rights before they execute the
// program.
//
//	worker ──exec──► guard ──fork──► this program again ── no_new_privs, Landlock, seccomp ──exec──► command
//
// Guaranteed: a command reads the system's programs and libraries and nothing else of the host,
// writes its workspace and its scratch directory only, makes no sockets (or, when the network is
// allowed, only Internet sockets), shares no memory with others, and sends signals only to itself.
// The guard of driver process, which the command cannot signal, kills everything that it started
// when it ends, when the worker ends, and when the worker's lease ends. Control groups, if there
// are any, bound memory and processes.
//
// Not guaranteed, so the level is only [isolation.LevelPaths]: a command can change mode, times and
// extended attributes (not content) of any file of the worker's user; it can see the host's name,
// mounts, the user's keys and command lines of processes; it has no loopback, so programs cannot
// serve themselves; paths are those of the host, not /workspace.
//
// The driver refuses to run as root, which could change the mode of every file, and with a Landlock
// version that cannot restrict signals and abstract sockets.
package landlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Name is the driver's name.
const Name = "landlock"

// minABI is the version of Landlock that keeps signals and abstract sockets in: Linux 6.12.
const minABI = 6

// Options are the settings of a [Driver]; nil and zero mean the defaults.
type Options struct {
	// Logger gets what happens to commands, at debug level; nil discards it.
	Logger *slog.Logger
}

var _ isolation.Driver = (*Driver)(nil)

// Driver opens sandboxes of confined processes.
type Driver struct {
	log *slog.Logger
}

// New returns the driver.
func New(options *Options) *Driver {
	d := &Driver{}
	if options != nil {
		d.log = options.Logger
	}
	return d
}

// Name implements [isolation.Driver].
func (d *Driver) Name() string { return Name }

// usable says why the driver cannot work here.
func usable() error {
	if os.Geteuid() == 0 {
		return fmt.Errorf("%w: driver landlock does not work for root, who may change the mode of every file: run the worker as an ordinary user", isolation.ErrLevel)
	}
	if abi := confine.LandlockABI(); abi < minABI {
		return fmt.Errorf("%w: driver landlock needs Landlock ABI %d (Linux 6.12), the kernel has %d", isolation.ErrLevel, minABI, abi)
	}
	return nil
}

// Open implements [isolation.Driver].
func (d *Driver) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	if err := check(ctx, spec); err != nil {
		return nil, fmt.Errorf("open sandbox %s: %w", spec.ID, err)
	}
	inner := process.New(&process.Options{Logger: d.log, Wrap: func(cmd sandbox.Cmd, path string, argv []string) (string, []string, error) {
		return wrap(spec, cmd, path, argv)
	}})
	spec.Require = isolation.LevelNone
	spec.Env = withoutSystemSettings(spec.Env)
	return inner.Open(ctx, spec)
}

// withoutSystemSettings has git not look for /etc/gitconfig: a file that is there and cannot be
// read ends it.
func withoutSystemSettings(env map[string]string) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	if _, set := env["GIT_CONFIG_NOSYSTEM"]; !set {
		env["GIT_CONFIG_NOSYSTEM"] = "1"
	}
	return env
}

// check refuses what cannot be enforced.
func check(ctx context.Context, spec isolation.Spec) error {
	if err := usable(); err != nil {
		return err
	}
	if err := supervisor.Check(ctx, spec, Name, isolation.LevelPaths); err != nil {
		return err
	}
	if spec.Network.Mode == isolation.NetworkProxy {
		return fmt.Errorf("%w: driver landlock has no network mode %q", sandbox.ErrUnsupported, spec.Network.Mode)
	}
	if len(spec.Protect)+len(spec.Copies) > 0 {
		return fmt.Errorf("%w: driver landlock cannot protect %s: Landlock allows a directory with all that is in it, and takes nothing of that back",
			sandbox.ErrUnsupported, strings.Join(spec.Protect, ", "))
	}
	return nil
}

// wrap makes the command line by which the guard's program confines itself and becomes a command.
func wrap(spec isolation.Spec, cmd sandbox.Cmd, path string, argv []string) (string, []string, error) {
	config := initd.LandlockConfig{
		Workspace: spec.Workspace, Scratch: spec.Scratch, Mounts: spec.Mounts, Path: path,
		ReadOnly: cmd.ReadOnly, Network: spec.Network.Mode == isolation.NetworkAll,
	}
	var err error
	for _, dir := range []*string{&config.Workspace, &config.Scratch} {
		*dir, err = filepath.Abs(*dir)
		if err != nil {
			return "", nil, err
		}
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return "", nil, err
	}
	return "/proc/self/exe", append([]string{initd.LandlockArg0, string(encoded)}, argv...), nil
}

// Probe implements [isolation.Driver]: it opens a sandbox and tries what must not be possible.
func (d *Driver) Probe(ctx context.Context) (isolation.Caps, error) {
	caps := isolation.Caps{Driver: Name}
	if err := usable(); err != nil {
		return caps, fmt.Errorf("probe: %w", err)
	}
	inner, err := process.New(nil).Probe(ctx) // which finds out whether there are control groups
	if err != nil {
		return caps, err
	}
	if err := supervisor.Try("", func(spec isolation.Spec) error { return d.try(ctx, spec) }); err != nil {
		return caps, fmt.Errorf("probe: %w", err)
	}
	caps.Level, caps.Landlock, caps.Seccomp = isolation.LevelPaths, confine.LandlockABI(), true
	caps.Networks = []isolation.NetworkMode{isolation.NetworkNone, isolation.NetworkAll}
	caps.ReadOnly, caps.HostUID, caps.Limits = true, true, inner.Limits
	caps.Warnings = []string{
		"driver landlock isolates less than level full: commands are processes of the host and of the worker's user; they see its processes and mounts, " +
			"can change mode and times of the user's files, and cannot serve a network of their own; --allow-net is all or nothing, not a list of hosts",
	}
	return caps, nil
}

// try uses a sandbox once: its own files can be changed, others not even be read.
func (d *Driver) try(ctx context.Context, spec isolation.Spec) (err error) {
	if err := os.WriteFile(filepath.Join(filepath.Dir(spec.Workspace), "secret"), []byte("secret"), 0o600); err != nil {
		return err
	}
	spec.Env = map[string]string{"PATH": "/usr/bin:/bin"}
	s, err := d.Open(ctx, spec)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	const code = 7
	script := `echo x >own && ! cat ../secret && ! echo x >../secret && ! echo x >../new && exit 7`
	for _, readOnly := range []bool{false, true} {
		cmd := sandbox.Cmd{Argv: []string{"/bin/sh", "-c", script}, ReadOnly: readOnly}
		if readOnly {
			cmd.Argv[2] = `! echo x >own && ! cat ../secret && exit 7`
		}
		result, err := s.Exec(ctx, cmd)
		if err != nil {
			return err
		}
		if result.ExitCode != code {
			return fmt.Errorf("%w: a command that must not leave its workspace: %s, exit code %d: %s", isolation.ErrLevel, result.Reason, result.ExitCode, result.Stderr.Data)
		}
	}
	return nil
}
