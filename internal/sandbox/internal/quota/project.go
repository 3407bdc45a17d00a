//go:build linux

package quota

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
)

// Limits bound a project; 0 is none.
type Limits struct {
	Bytes int64 // in blocks of 1 KiB
	Files int64 // directories, links and everything else that has an inode
}

// Usage is what is counted for a project.
type Usage struct{ Bytes, Files int64 }

// Project is the directories of a sandbox. It is safe for concurrent use.
type Project struct {
	id  uint32
	dir *os.File // one of them

	mu     sync.Mutex
	limits Limits
}

// Open makes directories, which must not change meanwhile, and everything in them a project,
// without limits yet. What is in them is looked at only if that was not done before. An error is an
// [*isolation.UnusableError] when it cannot be done with these directories: they are on different
// file systems, or on one without quotas, or the host has them in a project of its own.
func Open(dirs ...string) (_ *Project, err error) {
	opened, err := openAll(dirs)
	defer func() {
		for i, dir := range opened {
			if i > 0 || err != nil {
				_ = dir.Close() // nothing was written
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := usable(opened[0]); err != nil {
		return nil, err
	}
	id, err := common(opened)
	if err == nil && id == 0 {
		id, err = choose(opened[0])
	}
	for _, dir := range opened {
		if err == nil {
			err = adopt(dir, id)
		}
	}
	if err != nil {
		return nil, err
	}
	return &Project{id: id, dir: opened[0]}, nil
}

// openAll opens directories of one file system.
func openAll(dirs []string) (opened []*os.File, err error) {
	var first, stat unix.Stat_t
	for _, name := range dirs {
		dir, err := os.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return opened, fmt.Errorf("quota: %w", err)
		}
		if opened = append(opened, dir); len(opened) == 1 {
			err = unix.Fstat(int(dir.Fd()), &first)
		}
		if err == nil {
			err = unix.Fstat(int(dir.Fd()), &stat)
		}
		if err != nil {
			return opened, fmt.Errorf("quota: %s: %w", name, err)
		}
		if stat.Dev != first.Dev {
			return opened, &isolation.UnusableError{What: isolation.Quotas, Found: fmt.Sprintf("%s and %s are on different file systems", dirs[0], name), Advice: "have both on one"}
		}
	}
	return opened, nil
}

// ID is the number of the project.
func (p *Project) ID() uint32 { return p.id }

// Limit sets the limits. What is over them already stays, and nothing more can be added.
func (p *Project) Limit(limits Limits) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if limits == p.limits {
		return nil
	}
	if err := limit(p.dir, p.id, limits); err != nil {
		return fmt.Errorf("quota: limit project %d: %w", p.id, err)
	}
	p.limits = limits
	return nil
}

// Usage returns what is counted.
func (p *Project) Usage() (Usage, error) {
	n, err := get(p.dir, p.id)
	if err != nil {
		return Usage{}, fmt.Errorf("quota: project %d: %w", p.id, err)
	}
	return Usage{Bytes: int64(n.space), Files: int64(n.files)}, nil //nolint:gosec // of this world
}

// near is the distance to a project's limit at which a write has probably failed by the quota: the
// kernel reserves more than one block for large writes, and XFS creates a file only if its
// directory could grow too, some 200 KiB. Of a small limit it is a quarter.
const near = 256 << 10

// Full reports whether a limit is reached.
func (p *Project) Full() bool {
	p.mu.Lock()
	limits := p.limits
	p.mu.Unlock()
	usage, err := p.Usage()
	if err != nil {
		return false
	}
	return limits.Bytes > 0 && usage.Bytes+min(near, limits.Bytes/4) > limits.Bytes || limits.Files > 0 && usage.Files >= limits.Files
}

// Close removes the limits. The directories stay in the project, and with them its number in use.
// It may be called once, on nil too.
func (p *Project) Close() error {
	if p == nil {
		return nil
	}
	return errors.Join(p.Limit(Limits{}), p.dir.Close())
}
