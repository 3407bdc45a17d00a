//go:build linux

package initd

import (
	"math"

	"golang.org/x/sys/unix"
)

// blockSize is what stat(2) counts in.
const blockSize = 512

// Bounds of looking at what a directory takes up.
const (
	heldLevels = 100    // of which the descriptors are kept
	mostLevels = 20_000 // of a tree that has an end: whoever makes a deeper one is up to nothing else
)

// diskUsage is how much the workspace and the scratch directory take up.
func diskUsage() uint64 {
	var total uint64
	for _, dir := range []string{GuestWorkspace, GuestHome, GuestTemp} {
		used := treeUsage(dir, mostLevels)
		if used > math.MaxUint64-total {
			return math.MaxUint64
		}
		total += used
	}
	return total
}

// level is a directory of a path down a tree.
type level struct {
	fd       int // -1 when it is not kept
	dev, ino uint64
	below    []string // directories in it that were not looked at
}

// treeUsage is how much a directory and everything in it takes up. It goes from directory to
// directory: paths may be longer than the kernel takes, and take the longer the deeper they are. What
// cannot be read counts as nothing, and trees deeper than most as endless.
func treeUsage(dir string, most int) uint64 {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	u := usage{buffer: make([]byte, 8<<10), most: most}
	u.enter(fd)
	for len(u.levels) > 0 && u.total < math.MaxUint64 {
		u.step()
	}
	for _, l := range u.levels {
		l.close()
	}
	return u.total
}

// usage is what was seen of a tree so far.
type usage struct {
	total  uint64
	levels []level // from the top to where it is
	buffer []byte
	most   int
}

func (l *level) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd) // nothing was written
		l.fd = -1
	}
}

// step goes one directory down, or up.
func (u *usage) step() {
	at := &u.levels[len(u.levels)-1]
	if at.fd < 0 || len(at.below) == 0 {
		u.leave()
		return
	}
	name := at.below[len(at.below)-1]
	at.below = at.below[:len(at.below)-1]
	fd, err := unix.Openat(at.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it was removed meanwhile, or is locked
	}
	if len(u.levels) >= heldLevels {
		at.close()
	}
	u.enter(fd)
}

// leave goes up. If the directory above is not kept and is not where it was any more, what was not
// looked at there counts as nothing.
func (u *usage) leave() {
	at := u.levels[len(u.levels)-1]
	u.levels = u.levels[:len(u.levels)-1]
	if n := len(u.levels); n > 0 && u.levels[n-1].fd < 0 && at.fd >= 0 {
		u.reopen(&u.levels[n-1], at.fd)
	}
	at.close()
}

func (u *usage) reopen(above *level, below int) {
	fd, err := unix.Openat(below, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) == nil && stat.Dev == above.dev && stat.Ino == above.ino {
		above.fd = fd
		return
	}
	_ = unix.Close(fd) // nothing was written
}

// enter looks at what is in a directory.
func (u *usage) enter(fd int) {
	if len(u.levels) == u.most {
		u.total = math.MaxUint64
		_ = unix.Close(fd) // nothing was written
		return
	}
	l := level{fd: fd}
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) == nil {
		l.dev, l.ino = stat.Dev, stat.Ino
		if len(u.levels) == 0 {
			u.add(&stat) // the others were seen from above
		}
	}
	for {
		n, err := unix.ReadDirent(fd, u.buffer)
		if n <= 0 || err != nil {
			break
		}
		_, _, names := unix.ParseDirent(u.buffer[:n], -1, nil)
		for _, name := range names {
			if unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // it was removed meanwhile
			}
			u.add(&stat)
			if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
				l.below = append(l.below, name)
			}
		}
	}
	u.levels = append(u.levels, l)
}

// add counts a file: its part, when it has several names.
func (u *usage) add(stat *unix.Stat_t) {
	names := uint64(1)
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		names = max(uint64(stat.Nlink), 1) //nolint:unconvert // 32 bits elsewhere
	}
	u.total += uint64(stat.Blocks) * blockSize / names //nolint:gosec // not negative
}
