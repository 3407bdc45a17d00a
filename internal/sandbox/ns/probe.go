//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

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
	d.ungrouped.Store(true)
	without, withoutErr := d.tryLink(ctx)
	if withoutErr != nil {
		d.ungrouped.Store(false)
		return caps, err
	}
	without.Warnings = append(without.Warnings, "control groups are not used, for a sandbox does not start in one: "+err.Error())
	return without, nil
}

// tryLink tries a sandbox with a link, else one without.
func (d *Driver) tryLink(ctx context.Context) (isolation.Caps, error) {
	caps, err := d.tryOut(ctx)
	failed, ok := errors.AsType[*startError](err)
	if !ok || !strings.HasSuffix(failed.Step, initd.StepLink) || ctx.Err() != nil {
		return caps, err
	}
	d.unlinked.Store(true)
	without, withoutErr := d.tryOut(ctx)
	if withoutErr != nil {
		d.unlinked.Store(false)
		return caps, err
	}
	without.Warnings = append(without.Warnings, "links are not used, for one cannot be made: "+err.Error())
	return without, nil
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
