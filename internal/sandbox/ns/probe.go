//go:build linux

package ns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initd"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
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

func (d *Driver) tryOut(ctx context.Context) (caps isolation.Caps, err error) {
	caps = isolation.Caps{Driver: Name, Launcher: LauncherNative}
	if d.bwrap.Load() {
		caps.Launcher = LauncherBwrap
	}
	dir, err := os.MkdirTemp(d.dir, ".toolfleet-probe-") // hidden, for what else is there has names of its own
	if err != nil {
		return caps, fmt.Errorf("probe: a sandbox needs a directory to be tried in, where --data is or in TMPDIR: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	workspace, scratch := filepath.Join(dir, "workspace"), filepath.Join(dir, "scratch")
	if err := errors.Join(os.Mkdir(workspace, 0o700), os.Mkdir(scratch, 0o700)); err != nil {
		return caps, fmt.Errorf("probe: %w", err)
	}
	// With a proxy and a link: all that a sandbox without a network has, and more.
	network := isolation.Network{
		Mode: isolation.NetworkProxy, Serve: func(ctx context.Context, _ net.Listener) { <-ctx.Done() },
		ServeLink: func(ctx context.Context, _ io.ReadWriteCloser) { <-ctx.Done() },
	}
	s, err := d.open(ctx, isolation.Spec{ID: "probe", Workspace: workspace, Scratch: scratch, Network: network})
	if err != nil {
		return caps, fmt.Errorf("probe: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := try(ctx, s); err != nil {
		if s.current.lost() {
			err = fmt.Errorf("%w: %s", err, s.current.postMortem())
		}
		return caps, fmt.Errorf("probe: %w", err)
	}
	caps.Limits = limitKinds(s.current.bounds.Group() != nil)
	caps = d.caps(caps, s.current.ready.Landlock)
	caps.Copies = d.copies(ctx, workspace, scratch)
	return caps, nil
}

// copies reports whether links can replace files: not every kernel mounts one.
func (d *Driver) copies(ctx context.Context, workspace, scratch string) bool {
	const place = "probe.txt"
	spec := isolation.Spec{ID: "probe", Workspace: workspace, Scratch: scratch, Protection: isolation.Protection{Protect: []string{place}, Copies: []string{place}}}
	s, err := d.open(ctx, spec)
	return err == nil && s.Close() == nil
}

// try uses a sandbox once.
func try(ctx context.Context, s sandbox.Sandbox) error {
	if _, err := s.FS().Write(ctx, protocol.FilesWrite{Path: "probe.txt", Content: []byte("probe")}); err != nil {
		return fmt.Errorf("write a file: %w", err)
	}
	const code = 7
	result, err := s.Exec(ctx, sandbox.Cmd{Argv: []string{"/bin/sh", "-c", "test -e probe.txt && exit 7"}})
	if err != nil {
		return fmt.Errorf("run a command: %w", err)
	}
	if result.Reason != sandbox.ReasonExited || result.ExitCode != code {
		return fmt.Errorf("a command that exits %d: %s, exit code %d: %s", code, result.Reason, result.ExitCode, result.Stderr.Data)
	}
	return nil
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
