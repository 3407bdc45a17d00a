//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
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
		return nil, errors.Join(err, s.guard.close(), opened.Close())
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
func newConfig(spec isolation.Spec, dir *supervisor.Scratch) (wire.Config, error) {
	workspace, err := filepath.Abs(spec.Workspace)
	if spec.Workspace == "" || err != nil {
		return wire.Config{}, errors.Join(errors.New("workspace directory is missing"), err)
	}
	info, err := os.Stat(workspace)
	if err != nil {
		return wire.Config{}, fmt.Errorf("workspace: %w", err)
	}
	stat, isStat := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !isStat {
		return wire.Config{}, fmt.Errorf("workspace %s is not a directory", workspace)
	}
	limits := isolation.WithDefaults(spec.Limits)
	config := wire.Config{
		Files: wire.Files{Workspace: workspace, Home: dir.Home(), Temp: dir.Temp()}, User: wire.User{HostUID: os.Geteuid(), HostGID: os.Getegid()},
		Reach: wire.Reach{Network: spec.Network.Mode}, Processes: uint64(limits.Processes), //nolint:gosec // not negative
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
		return wire.Config{}, err
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
func checkMounts(config *wire.Config, mounts []isolation.Mount) error {
	for _, m := range mounts {
		if m.Guest == "" {
			m.Guest = m.Host
		}
		m.Host, m.Guest = filepath.Clean(m.Host), filepath.Clean(m.Guest)
		if !filepath.IsAbs(m.Host) || !filepath.IsAbs(m.Guest) {
			return fmt.Errorf("mount %s as %s: both must be absolute paths", m.Host, m.Guest)
		}
		for _, reserved := range reservedPlaces {
			below := strings.HasPrefix(m.Guest, reserved+"/") && reserved != initd.GuestTemp // see [initd.HostTemp]
			if m.Guest == reserved || reserved != "/" && (below || strings.HasPrefix(reserved, m.Guest+"/")) {
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
	failed, ok := errors.AsType[*startError](err)
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
