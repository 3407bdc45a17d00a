//go:build linux

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// adviceDelegate is what helps where the system has controllers and does not hand them over.
const adviceDelegate = "have them delegated: Delegate=yes in the worker's systemd unit, or start it by " +
	"systemd-run --user --scope -p Delegate=yes (as root without --user); in a container mount /sys/fs/cgroup writable"

// refused is an error of the system about a group.
func refused(dir string, err error) error {
	return &isolation.UnusableError{Found: dir + " is not for this process to divide", Advice: adviceDelegate, Err: err}
}

// Location is where this process is in the hierarchy of control groups.
type Location struct {
	// Top is where the hierarchy is mounted, Own the group of this process.
	Top, Own string
	systemd  bool // manages the groups that it has not delegated
}

// Locate finds the hierarchy and this process in it. It changes nothing. An error is an
// [*isolation.UnusableError].
func Locate() (*Location, error) {
	_, err := os.Stat("/run/systemd/system")
	return locate("/proc/self", err == nil)
}

func locate(proc string, systemd bool) (*Location, error) {
	table, err := os.ReadFile(filepath.Join(proc, "mountinfo"))
	if err != nil {
		return nil, &isolation.UnusableError{Found: "there is no /proc", Err: err}
	}
	groups, err := os.ReadFile(filepath.Join(proc, "cgroup"))
	if err != nil {
		return nil, &isolation.UnusableError{Found: "the kernel has none", Advice: "use a kernel with CONFIG_CGROUPS", Err: err}
	}
	mounts, err := system.ParseMounts(string(table))
	if err != nil {
		return nil, &isolation.UnusableError{Found: "the mounts cannot be read", Err: err}
	}
	top, root := hierarchy(mounts)
	own, found := ownGroup(string(groups))
	if top == "" || !found {
		return nil, &isolation.UnusableError{
			Found: "version 2 is not mounted", Advice: "mount it, in a container at /sys/fs/cgroup, or boot with systemd.unified_cgroup_hierarchy=1",
		}
	}
	below, err := filepath.Rel(root, own)
	if err != nil || below == ".." || strings.HasPrefix(below, "../") {
		return nil, &isolation.UnusableError{
			Found:  fmt.Sprintf("the group of this process, %s, is not below what %s shows", own, top),
			Advice: "mount the hierarchy in the worker's control group namespace",
		}
	}
	p := &Location{Top: top, Own: filepath.Join(top, below), systemd: systemd}
	return p, p.check()
}

// hierarchy finds where version 2 is mounted, and what part of it.
func hierarchy(mounts []system.Mount) (top, root string) {
	for _, m := range mounts {
		if m.Type == "cgroup2" {
			return m.Point, m.Root
		}
	}
	return "", ""
}

// ownGroup is the group of a process in version 2.
func ownGroup(cgroup string) (path string, found bool) {
	for line := range strings.Lines(cgroup) {
		if path, found = strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			return path, true
		}
	}
	return "", false
}

// check looks for the controllers.
func (p *Location) check() error {
	have, err := words(p.Own, "cgroup.controllers")
	if err != nil {
		return &isolation.UnusableError{Found: "the group of this process cannot be read", Advice: adviceDelegate, Err: err}
	}
	missing := slices.DeleteFunc(Controllers(), func(c string) bool { return slices.Contains(have, c) })
	if len(missing) == 0 {
		return nil
	}
	whole, _ := words(p.Top, "cgroup.controllers") // none is an answer
	if !slices.Contains(whole, missing[0]) {
		return &isolation.UnusableError{
			Found:  fmt.Sprintf("version 2, at %s, lacks %s, which version 1 may have", p.Top, strings.Join(missing, ", ")),
			Advice: "use version 2 alone: boot with systemd.unified_cgroup_hierarchy=1 (cgroup_no_v1=all without systemd)",
		}
	}
	return &isolation.UnusableError{Found: "without " + strings.Join(missing, ", ") + " in " + p.Own, Advice: adviceDelegate}
}

// candidates are the groups that may be for this process to divide, the best first: the
// one above its own, as systemd's DelegateSubgroup= has it, and its own.
func (p *Location) candidates() []string {
	if p.Own == p.Top || !p.delegated(filepath.Dir(p.Own)) {
		return []string{p.Own}
	}
	return []string{filepath.Dir(p.Own), p.Own}
}

// delegated reports whether a group was handed over by the system.
func (p *Location) delegated(dir string) bool {
	if !p.systemd || p.isNamespace(dir) {
		return true
	}
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		value := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, value); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	return false
}

// isNamespace reports whether a group is all that this process's container has.
func (p *Location) isNamespace(dir string) bool {
	return dir == p.Top && !isRoot(dir)
}

// isRoot reports whether a group is the root of the whole hierarchy, which has no type.
func isRoot(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "cgroup.type"))
	return errors.Is(err, fs.ErrNotExist)
}

// enable hands the controllers to what is below a group, after the processes in it have
// moved out of the way.
func (p *Location) enable(dir string) error {
	if !p.delegated(dir) {
		return &isolation.UnusableError{Found: dir + " was not delegated", Advice: adviceDelegate}
	}
	err := control(dir, Controllers())
	if errors.Is(err, unix.EBUSY) && dir == p.Own {
		if err = p.moveAway(); err == nil {
			err = control(dir, Controllers())
		}
	}
	if errors.Is(err, unix.EBUSY) {
		return &isolation.UnusableError{
			Found: "other processes are in " + dir, Err: err,
			Advice: "start the worker in a group of its own: a systemd unit, or systemd-run --user --scope -p Delegate=yes",
		}
	}
	if err != nil {
		return refused(dir, err)
	}
	return nil
}

// moveAway moves this process into a group below its own; in a container all processes, because
// they share the group.
func (p *Location) moveAway() error {
	leaf := filepath.Join(p.Own, workerName)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as all groups
		return err
	}
	if err := put(leaf, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	if !p.isNamespace(p.Own) {
		return nil
	}
	others, err := words(p.Own, "cgroup.procs")
	for _, pid := range others {
		if moveErr := put(leaf, "cgroup.procs", pid); !errors.Is(moveErr, unix.ESRCH) { // it may have ended
			err = errors.Join(err, moveErr)
		}
	}
	return err
}
