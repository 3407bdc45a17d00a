//go:build linux

// Package ns is the sandbox driver that isolates: each sandbox is a set of Linux namespaces of its
// own, with Landlock and a system call filter on top and no capability in it.
//
//	worker                               sandbox
//	  Open ───launch─────────────────────► first process: its own root, users, processes,
//	   │                                   network, host name; gives up its rights; tests itself
//	  Exec ───argv, pipes──control───────►   fork ─► command
//	   │ ◄────output through the pipes──────────────────┘
//	   │ ◄────how it ended, all of it dead── │
//	  FS ─────request────────────────────►   file operation, inside
//	  Close ──kill the first process─────► the kernel kills all others
//
// A sandbox is warm: its first process, package initd, is started once, and a command costs one
// fork. What a sandbox sees is made for it: the host's /usr read-only, a small /etc, /proc and /dev
// of its own, its workspace, and a home and a /tmp that are the scratch directory. There is no
// network but a loopback, unless the sandbox is made with one.
//
// The driver fails closed. The first process tests from inside that every layer holds, before
// anything else runs in the sandbox, and does not serve otherwise.
//
// When the worker is root, each sandbox has a user id of its own on the host that owns nothing
// there; its directories are mounted so that their owner appears as that user. For an ordinary user
// it is that user, who cannot be anybody else.
//
// Where the system has delegated control groups to the worker, a sandbox is started in one of its
// own (package cgroup), and its memory and processes are bounded by the kernel; otherwise memory is
// watched from inside. [sandbox.Result].Limits says which it was.
//
// Killing is the first process's work while it answers: on time-out and cancel, everything of the
// command is asked to end, after the grace time it is killed, and so is whatever a command leaves.
// If it does not answer it is killed itself, from outside, and the kernel leaves no process of the
// sandbox: [sandbox.ReasonLost]. The next command gets a new one. The first process ends by itself
// when the worker is gone or its lease has ended.
package ns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/cgroup"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Name is the driver's name.
const Name = "ns"

// Options are the settings of a [Driver]; nil and zero mean the defaults.
type Options struct {
	// Logger gets what happens to sandboxes and commands, at debug level; nil discards it.
	Logger *slog.Logger
	// Launcher is how namespaces are made; "" is [LauncherNative], and [LauncherBwrap] when
	// a probe finds that it alone works.
	Launcher string
	// Dir is an existing directory like those that sandboxes will have their workspaces in: probes
	// are made there, because what can be proven depends on the file system. "" is the one for
	// temporary files.
	Dir string
}

// The launchers.
const (
	// LauncherNative makes namespaces itself.
	LauncherNative = "native"
	// LauncherBwrap has /usr/bin/bwrap (bubblewrap) make them, for hosts that let no other
	// program do it. It is not for root.
	LauncherBwrap = "bwrap"
)

var _ isolation.Driver = (*Driver)(nil)

// Driver opens sandboxes in namespaces.
type Driver struct {
	log    *slog.Logger
	dir    string      // for probes
	choose bool        // whether a probe chooses the launcher
	bwrap  atomic.Bool // whether that is bwrap

	find      func() (*cgroup.Tree, error)
	ungrouped atomic.Bool // whether control groups turned out to be of no use
	unlinked  atomic.Bool // whether links did
}

// New returns the driver.
func New(options *Options) *Driver {
	if options == nil {
		options = &Options{}
	}
	d := &Driver{log: options.Logger, dir: options.Dir, choose: options.Launcher == "", find: cgroup.Find}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.bwrap.Store(options.Launcher == LauncherBwrap)
	return d
}

// Name implements [isolation.Driver].
func (d *Driver) Name() string { return Name }

// level is what the driver reaches on this host: without Landlock a layer is missing.
func level() isolation.Level {
	if confine.LandlockABI() == 0 {
		return isolation.LevelPaths
	}
	return isolation.LevelFull
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
	if err := errors.Join(supervisor.Check(ctx, spec, Name, level()), checkNetwork(spec.Network)); err != nil {
		return nil, err
	}
	opened, err := supervisor.OpenScratch(spec.Scratch)
	if err != nil {
		return nil, err
	}
	config, err := newConfig(spec, opened)
	config.Link = spec.Network.Mode == isolation.NetworkProxy && spec.Network.ServeLink != nil && d.links()
	if config.Bwrap = d.bwrap.Load(); err == nil && config.Bwrap && config.Privileged {
		err = fmt.Errorf("%w: the launcher bwrap is not for root", isolation.ErrLevel)
	}
	if err == nil && config.Bwrap && len(spec.Copies) > 0 {
		err = fmt.Errorf("%w: the launcher bwrap mounts no symbolic links, which copies of %s need", sandbox.ErrUnsupported, strings.Join(spec.Copies, ", "))
	}
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	s := &Sandbox{
		spec: spec, config: config, groups: d.groups(), scratch: opened,
		log: d.log, gate: supervisor.NewGate(spec.ID, d.log),
	}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.protected.close(), opened.Close())
	}
	return s, nil
}

// links reports whether sandboxes can have links. Under Bubblewrap no process may make one.
func (d *Driver) links() bool { return !d.bwrap.Load() && !d.unlinked.Load() }

// groups is where sandboxes get control groups; nil when they get none.
func (d *Driver) groups() *cgroup.Tree {
	if d.ungrouped.Load() {
		return nil
	}
	groups, err := d.find()
	if err != nil {
		return nil // limits are enforced in other ways, and published so
	}
	return groups
}

// newConfig says what a sandbox is made of.
func newConfig(spec isolation.Spec, dir *supervisor.Scratch) (initd.Config, error) {
	workspace, err := filepath.Abs(spec.Workspace)
	if spec.Workspace == "" || err != nil {
		return initd.Config{}, errors.Join(errors.New("workspace directory is missing"), err)
	}
	info, err := os.Stat(workspace)
	if err != nil {
		return initd.Config{}, fmt.Errorf("workspace: %w", err)
	}
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !isStat {
		return initd.Config{}, fmt.Errorf("workspace %s is not a directory", workspace)
	}
	limits := isolation.WithDefaults(spec.Limits)
	config := initd.Config{
		Files: initd.Files{Workspace: workspace, Home: dir.Home(), Temp: dir.Temp()}, HostUser: initd.HostUser{HostUID: os.Geteuid(), HostGID: os.Getegid()},
		Reach: initd.Reach{Network: spec.Network.Mode}, Processes: uint64(limits.Processes), //nolint:gosec // not negative
		Shm:      initd.ShmSize(limits.Memory),
		Landlock: confine.LandlockABI() > 0,
	}
	for _, addr := range spec.Network.Addresses {
		config.Addresses = append(config.Addresses, addr.String())
	}
	if os.Geteuid() == 0 {
		config.Privileged = true
		config.OwnerUID, config.OwnerGID = int(stat.Uid), int(stat.Gid)
	}
	if config.Namespaces, err = namespaces(); err != nil {
		return initd.Config{}, err
	}
	return config, checkMounts(&config, spec.Mounts)
}

// namespaces are those of this process, which do not change.
var namespaces = sync.OnceValues(initd.Namespaces) //nolint:gochecknoglobals // a constant

// reservedPlaces are the sandbox's own directories; a mount there would be hidden, or hide them.
var reservedPlaces = []string{ //nolint:gochecknoglobals // a constant
	"/", "/proc", "/dev", "/sys", "/etc", initd.GuestWorkspace, initd.GuestHome, initd.GuestTemp, initd.HostTemp,
}

// checkMounts puts mounts into a configuration if they can be made, outer ones first.
func checkMounts(config *initd.Config, mounts []isolation.Mount) error {
	for _, m := range mounts {
		if m.Guest == "" {
			m.Guest = m.Host
		}
		m.Host, m.Guest = filepath.Clean(m.Host), filepath.Clean(m.Guest)
		if !filepath.IsAbs(m.Host) || !filepath.IsAbs(m.Guest) {
			return fmt.Errorf("mount %s as %s: both must be absolute paths", m.Host, m.Guest)
		}
		for _, reserved := range reservedPlaces {
			below := reserved != initd.GuestTemp && system.Within(reserved, m.Guest) // see [initd.HostTemp]
			if m.Guest == reserved || reserved != "/" && (below || system.Within(m.Guest, reserved)) {
				return fmt.Errorf("mount %s as %s: %s belongs to the sandbox; give the mount another path", m.Host, m.Guest, reserved)
			}
		}
		if _, err := os.Stat(m.Host); err != nil {
			return fmt.Errorf("mount: %w", err)
		}
		config.Mounts = append(config.Mounts, m)
	}
	slices.SortFunc(config.Mounts, func(a, b isolation.Mount) int { return strings.Compare(a.Guest, b.Guest) })
	return nil
}

// explain says what to do about a sandbox that does not start.
func explain(err error) error {
	failed, ok := errors.AsType[*initd.Failed](err)
	if !ok {
		return err
	}
	hint := ""
	switch failed.Step {
	case initd.StepNamespaces:
		hint = "; the host does not let this user make namespaces (user.max_user_namespaces, AppArmor, or the filter of a container)"
	case initd.StepTranslate:
		hint = "; the file system of this directory cannot show files under another owner: run the worker as an ordinary user, or use a directory on ext4, xfs, btrfs or tmpfs"
	case initd.StepLink:
		hint = "; the kernel has no veth interfaces or packet sockets"
	case "/proc":
		hint = "; inside a container /proc has to be mounted whole"
	}
	return fmt.Errorf("%w: %w%s", isolation.ErrLevel, err, hint)
}

// Probe implements [isolation.Driver]: it opens a sandbox, which tests itself, and uses it.
// Unless the launcher is given, it is native if that works, else bwrap; sandboxes are then
// opened with that.
func (d *Driver) Probe(ctx context.Context) (isolation.Caps, error) {
	caps, err := d.probe(ctx)
	if err == nil || !d.choose || ctx.Err() != nil || os.Geteuid() == 0 {
		return caps, err
	}
	if _, missing := os.Stat(bwrapPath); missing != nil {
		return caps, err
	}
	d.bwrap.Store(true)
	caps, bwrapErr := d.probe(ctx)
	if bwrapErr != nil {
		d.bwrap.Store(false)
		return caps, fmt.Errorf("%w; with bwrap: %w", err, bwrapErr)
	}
	return caps, nil
}

// probe tries sandboxes in control groups if there are any, else without.
func (d *Driver) probe(ctx context.Context) (isolation.Caps, error) {
	grouped := d.groups() != nil
	caps, err := d.tryLink(ctx)
	if err == nil || !grouped || ctx.Err() != nil {
		return caps, err
	}
	const warning = "control groups are not used, for a sandbox does not start in one"
	return supervisor.TryWithout(&d.ungrouped, caps, err, warning, func() (isolation.Caps, error) { return d.tryLink(ctx) })
}

// tryLink tries a sandbox with a link, else one without.
func (d *Driver) tryLink(ctx context.Context) (isolation.Caps, error) {
	caps, err := d.tryOut(ctx)
	failed, ok := errors.AsType[*initd.Failed](err)
	if !ok || !strings.HasSuffix(failed.Step, initd.StepLink) || ctx.Err() != nil {
		return caps, err
	}
	const warning = "links are not used, for one cannot be made"
	return supervisor.TryWithout(&d.unlinked, caps, err, warning, func() (isolation.Caps, error) { return d.tryOut(ctx) })
}

func (d *Driver) tryOut(ctx context.Context) (isolation.Caps, error) {
	caps := isolation.Caps{Driver: Name, Launcher: LauncherNative}
	if d.bwrap.Load() {
		caps.Launcher = LauncherBwrap
	}
	err := supervisor.Try(d.dir, func(spec isolation.Spec) (err error) {
		linked := spec
		linked.Network = isolation.Network{ // all that a sandbox without a network has, and more
			Mode: isolation.NetworkProxy, Serve: func(ctx context.Context, _ net.Listener) { <-ctx.Done() },
			ServeLink: func(ctx context.Context, _ io.ReadWriteCloser) { <-ctx.Done() },
		}
		s, err := d.open(ctx, linked)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		const code = 7
		if err := supervisor.TryCommand(ctx, s, []string{"/bin/sh", "-c", "test -e probe.txt && exit 7"}, code); err != nil {
			if s.current.lost() {
				err = fmt.Errorf("%w: %s", err, s.current.postMortem())
			}
			return err
		}
		caps.Limits = limitKinds(s.current.bounds.Used())
		caps = d.caps(caps, s.current.ready.Landlock)
		caps.Copies = d.copies(ctx, spec)
		return nil
	})
	if err != nil {
		err = fmt.Errorf("probe: %w", err)
	}
	return caps, err
}

// copies reports whether links can replace files: not every kernel mounts one.
func (d *Driver) copies(ctx context.Context, spec isolation.Spec) bool {
	const place = "probe.txt"
	spec.Protection = isolation.Protection{Protect: []string{place}, Copies: []string{place}}
	s, err := d.open(ctx, spec)
	return err == nil && s.Close() == nil
}

// caps fills in what a sandbox that serves has proven.
func (d *Driver) caps(caps isolation.Caps, landlock int) isolation.Caps {
	caps.Level, caps.Landlock, caps.Seccomp = level(), landlock, true
	caps.HostUID, caps.Protect = os.Geteuid() != 0, true
	caps.ReadOnly = landlock >= readOnlyABI
	caps.Networks = []isolation.NetworkMode{isolation.NetworkNone, isolation.NetworkProxy, isolation.NetworkAll}
	if caps.Link = d.links(); !caps.Link {
		caps.Warnings = append(caps.Warnings, "hosts of --allow-net are reached by programs that use the proxy in HTTPS_PROXY, and by no others")
	}
	if landlock == 0 {
		caps.Warnings = append(caps.Warnings, "the kernel has no Landlock: one layer of the sandbox is missing, and commands cannot be read-only")
	}
	return caps
}
