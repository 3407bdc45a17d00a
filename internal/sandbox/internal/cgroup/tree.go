//go:build linux

package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Names of groups.
const (
	prefix     = "toolfleet-"
	workerName = prefix + "worker"
)

// Controllers are what limits need.
func Controllers() []string { return []string{"cpu", "memory", "pids"} }

// Tree is where this process has the groups of its sandboxes. It is safe for concurrent use.
type Tree struct {
	dir  string
	lock *os.File // held as long as this process lives
	next atomic.Uint64
}

// Find finds a group that this process may use, once: every call returns the same. If need
// be it moves this process into a group below. An error is an [*isolation.UnusableError].
var Find = sync.OnceValues(func() (*Tree, error) { //nolint:gochecknoglobals // there is one hierarchy, and this process is in it
	at, err := Locate()
	if err != nil {
		return nil, err
	}
	return at.open()
})

// open takes the first of the groups that can be used.
func (p *Location) open() (*Tree, error) {
	var errs []error
	for _, dir := range p.candidates() {
		err := p.enable(dir)
		if err == nil {
			var t *Tree
			if t, err = newTree(dir); err == nil {
				return t, nil
			}
		}
		errs = append(errs, err)
	}
	return nil, errs[len(errs)-1] // its own group; unusable ones belong to other programs
}

// newTree makes the group of this process's sandboxes, and removes what killed processes left.
func newTree(dir string) (*Tree, error) {
	removeStale(dir)
	own := filepath.Join(dir, prefix+strings.ToLower(rand.Text()[:8]))
	if err := os.Mkdir(own, 0o755); err != nil { //nolint:gosec // as all groups
		return nil, refused(dir, err)
	}
	lock, err := os.Open(own)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = control(own, Controllers())
	}
	if err != nil {
		return nil, errors.Join(refused(own, err), lock.Close(), os.Remove(own))
	}
	t := &Tree{dir: own, lock: lock}
	if err := t.try(); err != nil {
		return nil, errors.Join(err, lock.Close(), os.Remove(own))
	}
	return t, nil
}

// try makes a group and limits it.
func (t *Tree) try() error {
	g, err := t.Open(Limits{Memory: 1 << 30, Processes: 1 << 10})
	if err != nil {
		return refused(t.dir, err)
	}
	return g.Close()
}

// Dir is the path of the group above those of the sandboxes.
func (t *Tree) Dir() string { return t.dir }

// Open makes a group with limits.
func (t *Tree) Open(limits Limits) (*Group, error) {
	path := filepath.Join(t.dir, strconv.FormatUint(t.next.Add(1), 10))
	if err := os.Mkdir(path, 0o755); err != nil { //nolint:gosec // as all groups
		return nil, fmt.Errorf("control group: %w", err)
	}
	g, err := newGroup(path, limits)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("control group: %w", err), os.Remove(path))
	}
	return g, nil
}

// control hands controllers to the groups below a group.
func control(dir string, controllers []string) error {
	active, err := words(dir, "cgroup.subtree_control")
	if err != nil {
		return err
	}
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(active, c) {
			missing = append(missing, "+"+c)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return put(dir, "cgroup.subtree_control", strings.Join(missing, " "))
}

// removeStale removes the groups of processes that are gone. What it cannot remove, another worker
// or the next start removes.
func removeStale(dir string) {
	found, _ := filepath.Glob(filepath.Join(dir, prefix+"*")) // the pattern is right
	for _, path := range found {
		if filepath.Base(path) != workerName {
			_ = remove(path)
		}
	}
}

// remove kills what is in the groups of a process that is gone, and removes them.
func remove(path string) error {
	lock, err := os.Open(path)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err // it lives
	}
	if err := put(path, "cgroup.kill", "1"); err != nil {
		return err
	}
	below, err := filepath.Glob(filepath.Join(path, "[0-9]*"))
	for _, group := range below {
		err = errors.Join(err, removeEmpty(group))
	}
	return errors.Join(err, removeEmpty(path))
}

// Times of the removal of a group whose processes were killed.
const (
	removeWait  = 2 * time.Second
	removePause = time.Millisecond
)

// removeEmpty removes a group once its processes, which were killed, are gone.
func removeEmpty(path string) error {
	deadline := time.Now().Add(removeWait)
	for pause := removePause; ; pause *= 2 {
		err := unix.Rmdir(path)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("remove control group %s: %w", path, err)
			}
			return nil
		}
		<-time.After(pause)
	}
}

// words are the words in a file of a group.
func words(dir, file string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(dir, file))
	return strings.Fields(string(text)), err
}

// put writes a file of a group, which has to be there.
func put(dir, file, value string) error {
	out, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = out.WriteString(value)
	return errors.Join(err, out.Close())
}
