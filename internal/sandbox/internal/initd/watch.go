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

// maxLevels bounds the depth of a tree, of which one directory is held open at each level: only an
// attacker makes a deeper one.
const maxLevels = 500

// treeFlags are the flags with which a directory of a tree is opened: no link leads out of it.
const treeFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC

// treeUsage is how much a directory and everything in it takes up: of a file with several names the
// part that is found, and of each 4 KiB at least. What cannot be read, or was removed or moved
// meanwhile, counts as nothing, and a tree of more than levels as endless.
func treeUsage(dir string, levels int) uint64 {
	fd, err := unix.Open(dir, treeFlags, 0)
	if err != nil {
		return 0
	}
	u := usage{buffer: make([]byte, 8<<10)}
	var stat unix.Stat_t
	if unix.Fstat(fd, &stat) == nil {
		u.add(&stat)
	}
	if !u.addAll(fd, levels) {
		return math.MaxUint64
	}
	return u.total
}

// usage is what was found of a tree so far.
type usage struct {
	total  uint64
	buffer []byte
}

// add adds a file or directory.
func (u *usage) add(stat *unix.Stat_t) {
	names := uint64(1)
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		names = max(uint64(stat.Nlink), 1) //nolint:unconvert // 32 bits elsewhere
	}
	u.total += max(uint64(stat.Blocks)*blockSize, leastSize) / names //nolint:gosec // not negative
}

// addAll adds what is in a directory, which it closes. It reports whether that ends within so many
// levels, and with the files that this process may have open. It needs no paths, because commands
// may have made the tree deeper than a path may be long.
func (u *usage) addAll(fd, levels int) bool {
	defer unix.Close(fd)
	if levels == 0 {
		return false
	}
	var below []string
	for {
		n, err := unix.ReadDirent(fd, u.buffer)
		if n <= 0 || err != nil {
			break
		}
		_, _, names := unix.ParseDirent(u.buffer[:n], -1, nil)
		for _, name := range names {
			var stat unix.Stat_t
			if unix.Fstatat(fd, name, &stat, unix.AT_SYMLINK_NOFOLLOW) != nil {
				continue // it was removed meanwhile
			}
			u.add(&stat)
			if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
				below = append(below, name)
			}
		}
	}
	for _, name := range below {
		inside, err := unix.Openat(fd, name, treeFlags, 0)
		if errors.Is(err, unix.EMFILE) || err == nil && !u.addAll(inside, levels-1) {
			return false
		}
	}
	return true
}
