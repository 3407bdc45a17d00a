//go:build linux

package quota

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/walk"
)

// adopt gives a directory and everything in it to a project. That new files inherit it is set in
// the end, and says that all of it was done.
func adopt(dir *os.File, id uint32) error {
	a, err := attributesOf(int(dir.Fd()))
	if err != nil {
		return refused(dir, err)
	}
	if a.project == id && a.flags&inherits != 0 {
		return nil
	}
	t := taker{id: id, top: int(dir.Fd()), names: map[inode]uint64{}}
	if err := walk.Tree(dir.Name(), walk.MaxLevels, t.take); err != nil {
		return fmt.Errorf("quota: %s: %w", dir.Name(), err)
	}
	err = errors.Join(t.failed, t.removeStage())
	if err == nil {
		err = change(t.top, id, true)
	}
	if err != nil {
		return refused(dir, err)
	}
	return nil
}

// taker gives files to a project.
type taker struct {
	id     uint32
	top    int
	stage  string           // a directory in top that is the project's; "" for none yet
	names  map[inode]uint64 // how many names of files with several were seen
	failed error
}

// inode is a file.
type inode struct{ device, number uint64 }

// take gives an entry to the project. FIFOs, sockets and devices take up next to nothing, and
// cannot be opened without effect. A file with several names is taken only if all of them are in
// the tree: otherwise it may belong to another user.
func (t *taker) take(dir int, name string, stat *unix.Stat_t) {
	if t.failed != nil || name == "." || name == t.stage {
		return
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR && stat.Nlink > 1 {
		file := inode{stat.Dev, stat.Ino}
		if t.names[file]++; t.names[file] < uint64(stat.Nlink) { //nolint:unconvert // 32 bits elsewhere
			return
		}
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		t.failed = t.give(dir, name, false)
	case unix.S_IFDIR:
		t.failed = t.give(dir, name, true)
	case unix.S_IFLNK:
		t.failed = t.replace(dir, name, stat)
	default:
	}
}

// give gives a file or directory to the project.
func (t *taker) give(dir int, name string, inherit bool) error {
	file, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(file)
	return change(file, t.id, inherit)
}

// replace puts a link of the project in the place of one, which cannot be given to it: of another
// project it could not be renamed in its directory. One with several names stays as it is.
func (t *taker) replace(dir int, name string, stat *unix.Stat_t) error {
	if stat.Nlink > 1 {
		return nil
	}
	target := make([]byte, stat.Size+1)
	n, err := unix.Readlinkat(dir, name, target)
	if err != nil {
		return err
	}
	if err := t.makeStage(); err != nil {
		return err
	}
	staged := t.stage + "/link"
	times := []unix.Timespec{stat.Atim, stat.Mtim}
	err = unix.Symlinkat(string(target[:n]), t.top, staged)
	if err == nil {
		err = unix.Fchownat(t.top, staged, int(stat.Uid), int(stat.Gid), unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.UtimesNanoAt(t.top, staged, times, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.Renameat(t.top, staged, dir, name)
	}
	return err
}

// makeStage makes the directory in which links are made.
func (t *taker) makeStage() error {
	if t.stage != "" {
		return nil
	}
	stage := ".toolfleet-" + rand.Text() + ".tmp"
	if err := unix.Mkdirat(t.top, stage, 0o700); err != nil {
		return err
	}
	t.stage = stage
	return t.give(t.top, stage, true)
}

func (t *taker) removeStage() error {
	if t.stage == "" {
		return nil
	}
	return errors.Join(ignoring(unix.ENOENT, unix.Unlinkat(t.top, t.stage+"/link", 0)), unix.Unlinkat(t.top, t.stage, unix.AT_REMOVEDIR))
}

// ignoring is err, or nil when it is one that does not matter.
func ignoring(harmless, err error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}
