//go:build linux

package initd

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// How often a command that has limits is looked at. What takes long is done less often, so
// that looking takes at most a tenth of the time.
const (
	memoryPause = 20 * time.Millisecond
	diskPause   = 200 * time.Millisecond
	lookShare   = 10
)

// watch kills a command that has more memory, or fills more of the disk, than it may.
func (t *commands) watch(c *command) {
	memory := newLook(memoryPause, c.limits.Memory, func() uint64 { return t.memory(c) })
	disk := newLook(diskPause, c.limits.Disk, diskUsage)
	if disk.limit > 0 {
		disk.limit = max(disk.limit, diskUsage()) // what was there before is not its doing, and it may be here to remove it
	}
	timer := time.NewTimer(memoryPause)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return
		case now := <-timer.C:
			switch {
			case memory.over(now):
				t.stop(c, sandbox.ReasonOOM)
				return
			case disk.over(now):
				t.stop(c, sandbox.ReasonDiskLimit)
				return
			}
			timer.Reset(memoryPause)
		}
	}
}

// look is something that is measured from time to time.
type look struct {
	limit   uint64
	measure func() uint64
	pause   time.Duration
	next    time.Time
}

func newLook(pause time.Duration, limit uint64, measure func() uint64) *look {
	return &look{limit: limit, measure: measure, pause: pause, next: time.Now()}
}

// over reports whether the limit is exceeded, if it is time to look.
func (l *look) over(now time.Time) bool {
	if l.limit == 0 || now.Before(l.next) {
		return false
	}
	start := time.Now()
	over := l.measure() > l.limit
	l.next = time.Now().Add(max(l.pause, lookShare*time.Since(start)))
	return over
}

// stop kills a command for a reason of its own.
func (t *commands) stop(c *command, why sandbox.Reason) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running[c.id] != c || c.asked {
		return // it ends already
	}
	c.over = why
	t.send(c, syscall.SIGKILL)
}

// memory is the memory of all processes of a sandbox, with shared memory that they no longer map,
// if c has more than any other command: then c has to end. Otherwise it is the memory of c.
func (t *commands) memory(c *command) uint64 {
	t.mu.Lock()
	members := t.allMembers(c)
	t.mu.Unlock()
	mine := held(members[c])
	total, most := mine+heldShared(), true
	for other, pids := range members {
		if other != c {
			theirs := held(pids)
			total, most = total+theirs, most && theirs <= mine
		}
	}
	if most {
		return total
	}
	return mine
}

// held is the memory of processes without pages of programs and files, which all share. Page tables
// count: those of large mappings that are only read take far more than the memory.
func held(pids []int) uint64 {
	var total uint64
	shared := map[int]uint64{}
	for _, pid := range pids {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue // it has ended
		}
		total += kilobytes(status, "RssAnon:") + kilobytes(status, "VmSwap:") + kilobytes(status, "VmPTE:")
		shared[pid] = kilobytes(status, "RssShmem:")
	}
	return (total + together(shared)) << 10
}

// together estimates the shared memory of processes, in kB, from the shared memory of each: the
// largest, if the others have little, since they may share the same pages. Otherwise each counts
// with its part of every page, which takes longer to read.
func together(shared map[int]uint64) (parts uint64) {
	const few = 16 << 10
	var sum, most uint64
	for _, size := range shared {
		sum, most = sum+size, max(most, size)
	}
	if sum-most <= few {
		return most
	}
	for pid, size := range shared {
		rollup, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
		switch {
		case err == nil:
			parts += kilobytes(rollup, "Pss_Shmem:")
		case errors.Is(err, fs.ErrPermission): // /proc does not show it
			parts += size
		}
	}
	return parts
}

// kilobytes is the value of a line of /proc/PID/status or of such a list.
func kilobytes(status []byte, key string) uint64 {
	_, rest, found := bytes.Cut(status, []byte("\n"+key))
	if !found {
		return 0
	}
	line, _, _ := bytes.Cut(rest, []byte(" kB"))
	value, _ := strconv.ParseUint(string(bytes.TrimSpace(line)), 10, 64) // 0 is right for anything else
	return value
}

const (
	blockSize = 512     // what stat(2) counts in
	leastSize = 4 << 10 // of a file with nothing in it: a file system has room for so many
)

// diskUsage is how much the workspace and the scratch directory take up.
func diskUsage() uint64 {
	var total uint64
	for _, dir := range []string{GuestWorkspace, GuestHome, GuestTemp} {
		used := treeUsage(dir, maxLevels)
		if used > math.MaxUint64-total {
			return math.MaxUint64
		}
		total += used
	}
	return total
}

// treeUsage is how much a directory and everything in it takes up: of a file with several names the
// part that is found, and of each 4 KiB at least. What cannot be read counts as nothing, and trees
// deeper than most as endless.
func treeUsage(dir string, most int) uint64 {
	var total uint64
	err := walkTree(dir, most, func(_ int, _ string, stat *unix.Stat_t) {
		names := uint64(1)
		if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			names = max(uint64(stat.Nlink), 1) //nolint:unconvert // 32 bits elsewhere
		}
		total += max(uint64(stat.Blocks)*blockSize, leastSize) / names //nolint:gosec // not negative
	})
	if errors.Is(err, errDeep) {
		return math.MaxUint64
	}
	return total
}

// heldLevels is how many directories are open at once, about.
const heldLevels = 100

// maxLevels bounds the depth of a tree: only an attacker makes a deeper one.
const maxLevels = 20_000

// errDeep says that a tree has more levels than are walked.
var errDeep = errors.New("the tree is too deep")

// visitor is called with each entry of a tree: its name in an open directory, and what it is.
type visitor func(dir int, name string, stat *unix.Stat_t)

// walkTree visits a directory, as "." of itself, and everything in it, a directory before what it
// holds. Commands may have made the tree deeper than files may be open, or than a path may be long:
// it goes from directory to directory, so it takes as long as there are entries, however they are
// nested. It follows no symbolic links. What cannot be read is left out, as is what was removed or
// moved meanwhile. An error is one of the directory itself, or errDeep, with a tree that has more
// than levels.
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
