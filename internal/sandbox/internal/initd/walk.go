//go:build linux

package initd

import (
	"errors"

	"golang.org/x/sys/unix"
)

// heldLevels is how many directories are open at once, about.
const heldLevels = 100

// maxLevels bounds the depth of a tree: only an attacker makes a deeper one.
const maxLevels = 20_000

// errDeep says that a tree has more levels than are walked.
var errDeep = errors.New("the tree is too deep")

// visitor is called with each entry of a tree: its name in an open directory, and what it is.
type visitor func(dir int, name string, stat *unix.Stat_t)

// walkTree visits a directory, as "." of itself, and everything in it, a directory before what it
// holds. Commands may have made the tree deeper than files may be open, or than a path may be long: it
// goes from directory to directory, so it takes as long as there are entries, however they are nested.
// It follows no symbolic links. What cannot be read is left out, as is what was removed or moved meanwhile. An error is
// one of the directory itself, or errDeep, with a tree that has more than levels.
func walkTree(dir string, levels int, visit visitor) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	w := walker{buffer: make([]byte, 8<<10), most: levels, visit: visit}
	w.enter(fd)
	for len(w.levels) > 0 && !w.deep {
		w.step()
	}
	for _, l := range w.levels {
		l.close()
	}
	if w.deep {
		return errDeep
	}
	return nil
}

// walker is what was seen of a tree so far.
type walker struct {
	visit  visitor
	levels []level // from the top to where it is
	buffer []byte
	most   int
	deep   bool
}

// level is a directory of a path down a tree.
type level struct {
	fd       int // -1 when it is not kept
	dev, ino uint64
	below    []string // directories in it that were not looked at
}

func (l *level) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd) // nothing was written
		l.fd = -1
	}
}

// step goes one directory down, or up.
func (w *walker) step() {
	at := &w.levels[len(w.levels)-1]
	if at.fd < 0 || len(at.below) == 0 {
		w.leave()
		return
	}
	name := at.below[len(at.below)-1]
	at.below = at.below[:len(at.below)-1]
	fd, err := unix.Openat(at.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // it was removed meanwhile, or is locked
	}
	if len(w.levels) >= heldLevels {
		at.close()
	}
	w.enter(fd)
}

// leave goes up. If the directory above is not kept and is not where it was any more, what was not
// looked at there is left out.
func (w *walker) leave() {
	at := w.levels[len(w.levels)-1]
	w.levels = w.levels[:len(w.levels)-1]
	if n := len(w.levels); n > 0 && w.levels[n-1].fd < 0 && at.fd >= 0 {
		w.reopen(&w.levels[n-1], at.fd)
	}
	at.close()
}

func (w *walker) reopen(above *level, below int) {
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
func (w *walker) enter(fd int) {
	if len(w.levels) == w.most {
		w.deep = true
		_ = unix.Close(fd) // nothing was written
		return
	}
	l := level{fd: fd}
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) == nil {
		l.dev, l.ino = stat.Dev, stat.Ino
		if len(w.levels) == 0 {
			w.visit(fd, ".", &stat) // the others were seen from above
		}
	}
	for {
		n, err := unix.ReadDirent(fd, w.buffer)
		if n <= 0 || err != nil {
			break
		}
		_, _, names := unix.ParseDirent(w.buffer[:n], -1, nil)
		for _, name := range names {
			if unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // it was removed meanwhile
			}
			w.visit(fd, name, &stat)
			if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
				l.below = append(l.below, name)
			}
		}
	}
	w.levels = append(w.levels, l)
}
