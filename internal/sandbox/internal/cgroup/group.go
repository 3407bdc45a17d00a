//go:build linux

package cgroup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"

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

// Path is the group's directory.
func (g *Group) Path() string { return g.path }

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

// Kill kills every process of the group, which is not to be used again.
func (g *Group) Kill() error {
	if err := put(g.path, "cgroup.kill", "1"); err != nil {
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
		if err = g.Kill(); err == nil {
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
