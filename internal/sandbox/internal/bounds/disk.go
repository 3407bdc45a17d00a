//go:build linux

package bounds

import (
	"errors"
	"log/slog"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/quota"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Disk is what bounds how much workspace and scratch directory take up: a quota of the file system,
// which has the limit of the command that runs when that is the only one; or nothing, and commands
// are watched from inside. It is safe for concurrent use.
type Disk struct {
	shared

	project *quota.Project // nil when there is none
}

// DiskBound is a command on a disk.
type DiskBound struct {
	*Disk
	*part
}

// NewDisk bounds the directories of a sandbox by quotas, if the host has them and the directories
// may become a project. Nothing may run in the sandbox yet.
func NewDisk(spec isolation.Spec, quotas bool, log *slog.Logger) *Disk {
	d := &Disk{}
	d.whole = isolation.WithDefaults(spec.Limits)
	if !spec.Owned || !quotas {
		return d
	}
	project, err := quota.Open(spec.Workspace, spec.Scratch)
	if err == nil {
		if err = project.Limit(diskLimits(d.whole)); err != nil {
			err = errors.Join(err, project.Close())
		}
	}
	if err != nil {
		log.Debug("no quota for a sandbox", slog.String("sandbox", spec.ID), slog.Any("error", err))
		return d
	}
	d.project = project
	d.set = func(l sandbox.Limits) error { return project.Limit(diskLimits(l)) }
	return d
}

// A sandbox may have as many files as there could be with something in them.
const (
	smallestFile = 4 << 10
	fewestFiles  = 1 << 10
)

// diskLimits are limits of commands as those of a project.
func diskLimits(l sandbox.Limits) quota.Limits {
	if l.Disk == 0 {
		return quota.Limits{}
	}
	return quota.Limits{Bytes: l.Disk, Files: max(l.Disk/smallestFile, fewestFiles)}
}

// Bounded reports whether there is a quota.
func (d *Disk) Bounded() bool { return d.project != nil }

// Enter counts a command in, whose limits are tighter than those of the sandbox or the same.
// Every success is followed by Leave.
func (d *Disk) Enter(limits sandbox.Limits) (*DiskBound, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.enter(limits)
	if err != nil {
		return nil, err
	}
	return &DiskBound{Disk: d, part: p}, nil
}

// Leave counts the command out.
func (b *DiskBound) Leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave(b.part)
}

// Watched reports whether the command has to be watched from inside: nothing bounds it, or only
// together with concurrent commands.
func (b *DiskBound) Watched() bool { return !b.Bounded() || b.limits.Disk != b.whole.Disk }

// Full reports whether the limit is reached.
func (b *DiskBound) Full() bool { return b.Bounded() && b.limits.Disk > 0 && b.project.Full() }

// Kind says by what the limit of the command was enforced.
func (b *DiskBound) Kind() isolation.LimitKind {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.Bounded() || !b.alone && b.limits.Disk != b.whole.Disk {
		return isolation.LimitSoft
	}
	return isolation.LimitQuota
}

// Close removes the limits.
func (d *Disk) Close() error { return d.project.Close() }
