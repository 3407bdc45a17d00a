//go:build linux

package ns

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/quota"
)

// disk is what bounds how much workspace and scratch directory take up: a quota of the file system, which has the
// limit of the command that runs when that is the only one; or nothing, and commands are watched from inside.
type disk struct {
	project *quota.Project // nil when there is none
	whole   sandbox.Limits

	mu      sync.Mutex
	running map[*diskBound]struct{}
}

// diskBound is a command on a disk.
type diskBound struct {
	*disk

	limits sandbox.Limits
	alone  bool // no command has run beside it
}

// newDisk bounds the directories of a sandbox, in which nothing runs yet, if quotas are of use, and the directories may
// be given to a project and can be.
func newDisk(spec sandbox.Spec, quotas bool, log *slog.Logger) *disk {
	d := &disk{whole: spec.Limits.WithDefaults(), running: map[*diskBound]struct{}{}}
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

// enter counts a command in, whose limits are tighter than those of the sandbox or the same.
// Every success is followed by leave.
func (d *disk) enter(limits sandbox.Limits) (*diskBound, error) {
	b := &diskBound{disk: d, limits: limits, alone: true}
	if d.project == nil {
		return b, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.running[b] = struct{}{}
	if len(d.running) > 1 {
		for other := range d.running {
			other.alone = false
		}
	}
	if err := d.apply(); err != nil {
		delete(d.running, b)
		return nil, err
	}
	return b, nil
}

// apply sets the limits. The caller holds the lock.
func (d *disk) apply() error {
	limits := d.whole
	if len(d.running) == 1 {
		for b := range d.running {
			limits = b.limits
		}
	}
	return d.project.Limit(diskLimits(limits))
}

func (b *diskBound) leave() {
	if b.project == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.running, b)
	_ = b.apply() // the limits that there were still hold
}

// watched reports whether the command has to be watched from inside: nothing bounds it, or only with those that may
// run beside it.
func (b *diskBound) watched() bool { return b.project == nil || b.limits.Disk != b.whole.Disk }

// full reports whether the limit is reached.
func (b *diskBound) full() bool { return b.project != nil && b.limits.Disk > 0 && b.project.Full() }

// kind says by what the limit of the command was enforced.
func (b *diskBound) kind() sandbox.LimitKind {
	if b.project == nil {
		return sandbox.LimitSoft
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.alone && b.limits.Disk != b.whole.Disk {
		return sandbox.LimitSoft
	}
	return sandbox.LimitQuota
}

// close removes the limits.
func (d *disk) close() error { return d.project.Close() }
