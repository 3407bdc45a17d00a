package process

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// minABI is the version of Landlock that keeps signals and abstract sockets in: Linux 6.12.
const minABI = 6

var _ isolation.Driver = (*Landlock)(nil)

// Landlock is the weaker sandbox driver, for hosts that allow no user namespaces: commands are
// processes of driver process, of the worker's user, that drop rights before they execute the
// program.
//
//	worker ──exec──► guard ──fork──► no_new_privs, Landlock, seccomp ──exec──► command
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
type Landlock struct{ Driver }

// NewLandlock returns the driver landlock.
func NewLandlock(options *Options) *Landlock {
	d := &Landlock{Driver: *New(options)}
	d.name, d.level = LandlockName, isolation.LevelPaths
	return d
}

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
func (d *Landlock) Open(ctx context.Context, spec isolation.Spec) (sandbox.Sandbox, error) {
	err := usable()
	for _, dir := range []*string{&spec.Workspace, &spec.Scratch} {
		if *dir != "" && err == nil {
			*dir, err = filepath.Abs(*dir)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open sandbox %s: %w", spec.ID, err)
	}
	spec.Env = withoutSystemSettings(spec.Env)
	return d.Driver.Open(ctx, spec)
}

// withoutSystemSettings has git not look for /etc/gitconfig: a file that is there and cannot be
// read ends it.
func withoutSystemSettings(env map[string]string) map[string]string {
	all := map[string]string{"GIT_CONFIG_NOSYSTEM": "1"}
	maps.Copy(all, env)
	return all
}

// Probe implements [isolation.Driver]: it opens a sandbox and tries what must not be possible.
func (d *Landlock) Probe(ctx context.Context) (isolation.Caps, error) {
	caps := isolation.Caps{Driver: d.name}
	if err := usable(); err != nil {
		return caps, fmt.Errorf("probe: %w", err)
	}
	inner, err := New(nil).Probe(ctx) // which finds out whether there are control groups
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
func (d *Landlock) try(ctx context.Context, spec isolation.Spec) (err error) {
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
