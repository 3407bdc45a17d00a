//go:build linux

// Package cgroup bounds sandboxes by control groups, version 2, where the system lets this
// process use them.
//
//	<delegated to this process>
//	├── toolfleet-worker        this process, if it was in the one above: processes and
//	│                           controllers do not go together in a group
//	└── toolfleet-RANDOM        the sandboxes of this process; locked while it lives
//	    ├── 1                   a sandbox: memory.max, pids.max, its share of the processors
//	    └── 2
//
// A group belongs to whom the system has given it, and systemd takes offence at others: only
// groups that were delegated are used (Delegate=yes), those of a container, and the whole
// hierarchy where no systemd runs. [Find] looks for one and says why there is none.
//
// A process is started in its group ([Group].Dir), so that limits hold for it from its
// first instruction. When memory runs out, the kernel kills the process of the group that
// holds most, and counts that ([Group.OOMKills]). memory.oom.group is not set: it would
// take all of a sandbox along, its first process too.
//
// The groups of a process that was killed are removed by the next one that looks: their lock is
// free then.
package cgroup

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
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

// Limits bound a group; 0 is none.
type Limits struct {
	Memory    int64 // bytes; swap is not used then
	Processes int64 // and threads
}

// Group is the group of a sandbox. It is safe for concurrent use.
type Group struct {
	path   string
	dir    *os.File
	events *os.File // memory.events

	mu     sync.Mutex
	limits Limits
}

func newGroup(path string, limits Limits) (*Group, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	g := &Group{path: path, dir: dir}
	if g.events, err = os.Open(path + "/memory.events"); err == nil {
		err = g.limit(limits)
	}
	if err != nil {
		return nil, errors.Join(err, g.closeFiles())
	}
	return g, nil
}

// Dir is the group as a descriptor, to start a process in it.
func (g *Group) Dir() *os.File { return g.dir }

// Limit changes the limits. When a group holds more memory than it may now, the kernel
// takes back what it can and then kills.
func (g *Group) Limit(limits Limits) error {
	if err := g.limit(limits); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}

func (g *Group) limit(limits Limits) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if limits.Memory != g.limits.Memory {
		if err := put(g.path, "memory.max", value(limits.Memory)); err != nil {
			return err
		}
		swap := "max"
		if limits.Memory > 0 {
			swap = "0"
		}
		if err := put(g.path, "memory.swap.max", swap); err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without swap
			return err
		}
		g.limits.Memory = limits.Memory
	}
	if limits.Processes != g.limits.Processes {
		if err := put(g.path, "pids.max", value(limits.Processes)); err != nil {
			return err
		}
		g.limits.Processes = limits.Processes
	}
	return nil
}

// value is a limit as the kernel reads it.
func value(limit int64) string {
	if limit <= 0 {
		return "max"
	}
	return strconv.FormatInt(limit, 10)
}

// OOMKills is how many processes of the group the kernel has killed because its memory was used up.
func (g *Group) OOMKills() uint64 {
	text := make([]byte, 1<<10)
	n, _ := g.events.ReadAt(text, 0) // what cannot be read has no numbers
	return number(text[:n], "oom_kill")
}

// number is the value of a line of a file of keys and values.
func number(text []byte, key string) uint64 {
	for line := range bytes.Lines(text) {
		if rest, found := bytes.CutPrefix(line, []byte(key+" ")); found {
			value, _ := strconv.ParseUint(string(bytes.TrimSpace(rest)), 10, 64) // 0 is right for anything else
			return value
		}
	}
	return 0
}

// KillEach freezes the group and kills its processes one by one. The group can be used again; a
// process that started at the last moment is left. Of a group that was killed as a whole, some
// kernels (6.12.107 is one) kill what is started in it later, too.
func (g *Group) KillEach() error {
	if err := put(g.path, "cgroup.freeze", "1"); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	pids, err := words(g.path, "cgroup.procs")
	for _, word := range pids {
		if pid, err := strconv.Atoi(word); err == nil && pid > 0 { // 0 is one that cannot be seen from here
			_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		}
	}
	if err = errors.Join(err, put(g.path, "cgroup.freeze", "0")); err != nil {
		return fmt.Errorf("control group: %w", err)
	}
	return nil
}

// Close removes the group, and kills what is in it if there is anything. It may be
// called once, on nil too.
func (g *Group) Close() error {
	if g == nil {
		return nil
	}
	err := unix.Rmdir(g.path)
	if errors.Is(err, unix.EBUSY) {
		if err = put(g.path, "cgroup.kill", "1"); err == nil {
			err = removeEmpty(g.path)
		}
	}
	return errors.Join(err, g.closeFiles())
}

func (g *Group) closeFiles() error {
	err := g.dir.Close()
	if g.events != nil {
		err = errors.Join(err, g.events.Close())
	}
	return err
}

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
