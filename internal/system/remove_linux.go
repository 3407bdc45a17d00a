package system

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// heldLevels is how many directories are open at once.
const heldLevels = 64

// RemoveAt is [RemoveTree] for an entry of an open directory, whose name has no slash.
func RemoveAt(parent *os.File, name string) error { return at(always, parent, name) }

func at(may func() error, parent *os.File, name string) error {
	if err := may(); err != nil {
		return err
	}
	r := removal{parent: parent}
	r.remove(parent, name)
	for len(r.levels) > 0 {
		if err := may(); err != nil {
			r.close()
			return err
		}
		at := &r.levels[len(r.levels)-1]
		if len(at.names) == 0 {
			r.leave()
			continue
		}
		name := at.names[len(at.names)-1]
		at.names = at.names[:len(at.names)-1]
		r.remove(at.dir, name)
	}
	return r.failed
}

// RemoveIn is [RemoveTree] for a path below a root; nothing outside of the root is removed.
func RemoveIn(root *os.Root, name string) error {
	parent, err := root.Open(filepath.Dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer parent.Close()
	return RemoveAt(parent, filepath.Base(name))
}

// removal is what is under way.
type removal struct {
	parent *os.File
	levels []level // from the tree to the directory that is being emptied
	device uint64  // of the tree
	moved  int     // how many directories were moved to the top
	failed error   // the first failure
}

// level is a directory that is being emptied.
type level struct {
	dir   *os.File
	name  string   // in the level above
	names []string // entries that are not removed yet
}

// fail notes a failure.
func (r *removal) fail(op string, dir *os.File, name string, err error) {
	if r.failed == nil && err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.failed = &os.PathError{Op: op, Path: filepath.Join(dir.Name(), name), Err: err}
	}
}

// remove removes an entry, or begins to empty it.
func (r *removal) remove(dir *os.File, name string) {
	err := unix.Unlinkat(fd(dir), name, 0)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return
	}
	opened, openErr := open(dir, name)
	switch {
	case errors.Is(openErr, unix.ENOTDIR), errors.Is(openErr, unix.ELOOP): // a file, or a link
		r.fail("remove", dir, name, err)
	case openErr != nil:
		r.fail("open", dir, name, openErr)
	case len(r.levels) == heldLevels:
		_ = opened.Close() // it was unlocked by that
		r.fail("move", dir, name, r.raise(dir, name))
	default:
		r.fail("open", dir, name, r.enter(opened, name))
	}
}

// enter begins to empty an open directory.
func (r *removal) enter(dir *os.File, name string) error {
	var stat unix.Stat_t
	err := unix.Fstat(fd(dir), &stat)
	if err == nil && len(r.levels) == 0 {
		r.device = stat.Dev
	}
	if err == nil && stat.Dev != r.device {
		err = unix.EXDEV // something is mounted there, which is not ours to remove
	}
	var names []string
	if err == nil {
		names, err = dir.Readdirnames(-1)
	}
	if err != nil {
		return errors.Join(err, dir.Close())
	}
	r.levels = append(r.levels, level{dir: dir, name: name, names: names})
	return nil
}

// leave removes the directory that was emptied.
func (r *removal) leave() {
	last := len(r.levels) - 1
	at, above := r.levels[last], r.parent
	if r.levels = r.levels[:last]; last > 0 {
		above = r.levels[last-1].dir
	}
	_ = at.dir.Close() // it was only read
	r.fail("remove", above, at.name, unix.Unlinkat(fd(above), at.name, unix.AT_REMOVEDIR))
}

// close leaves everything that is left.
func (r *removal) close() {
	for _, at := range r.levels {
		_ = at.dir.Close() // it was only read
	}
}

// raise moves a directory to the top of the tree, where it is emptied later.
func (r *removal) raise(dir *os.File, name string) error {
	top := &r.levels[0]
	for ; r.moved < math.MaxInt; r.moved++ {
		to := ".removed." + strconv.Itoa(r.moved)
		switch err := unix.Renameat2(fd(dir), name, fd(top.dir), to, unix.RENAME_NOREPLACE); {
		case err == nil:
			r.moved++
			top.names = append(top.names, to)
			return nil
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	return unix.EEXIST
}

// open opens a directory, and gives its owner the right to list and change it.
func open(dir *os.File, name string) (*os.File, error) {
	const flags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	at, err := unix.Openat(fd(dir), name, flags, 0)
	if errors.Is(err, unix.EACCES) {
		if unlock(dir, name) == nil {
			at, err = unix.Openat(fd(dir), name, flags, 0)
		}
	}
	if err != nil {
		return nil, err
	}
	opened := os.NewFile(uintptr(at), filepath.Join(dir.Name(), name))
	var stat unix.Stat_t
	if err := unix.Fstat(at, &stat); err == nil && stat.Mode&0o700 != 0o700 {
		_ = unix.Fchmod(at, 0o700) // what cannot be removed then, says so
	}
	return opened, nil
}

// unlock lets the owner of a directory enter it, and follows no link.
func unlock(dir *os.File, name string) error {
	at, err := unix.Openat(fd(dir), name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Chmod("/proc/self/fd/"+strconv.Itoa(at), 0o700)
}

func fd(file *os.File) int { return int(file.Fd()) }
