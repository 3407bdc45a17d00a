//go:build linux

package initd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"slices"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/system"
)

// HostName is the name of the host in a sandbox.
const HostName = "sandbox"

// SpareProcesses is how many processes and threads the first process itself may need.
const SpareProcesses = 32

// inherited are descriptors of the launcher that a new process uses.
type inherited struct {
	control int // the sandbox's end of its control socket
	mapped  int // has a byte to read when its users are mapped
	mapping int // the other end of that
	trees   []int
}

// setup is what a process in new namespaces does to be the first process of a sandbox: it
// makes the sandbox around itself, gives up every right, and executes serve.
func setup(config Config, from inherited) (*confine.List, error) {
	l := &confine.List{}
	l.Step("first process")
	l.Do(unix.SYS_CLOSE, from.mapping)
	l.Do(unix.SYS_READ, from.mapped, make([]byte, 1), 1)
	l.Do(unix.SYS_SETSID)
	l.Do(unix.SYS_DUP3, from.control, fdControl, 0)
	layer(l, config, "user", func() { becomeUser(l, config.Privileged) })
	layer(l, config, "close descriptors", func() { closeOnExec(l) }) // what launch has opened is used before
	layer(l, config, "host name", func() { l.Do(unix.SYS_SETHOSTNAME, []byte(HostName), len(HostName)) })
	// Not made with the process: the group that it sees as the root would not be its own.
	layer(l, config, "control group namespace", func() { l.Do(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP) })
	if config.Network != isolation.NetworkAll {
		layer(l, config, "loopback", func() { loopback(l) })
	}
	if config.Link {
		layer(l, config, StepLink, func() { link(l, config) })
	}
	if err := enterRoot(l, config, from.trees); err != nil {
		return nil, err
	}
	return l, lockDown(l, config)
}

// shut is the rest of setup when another program, bwrap, has made the namespaces and the
// root, and has this one as its first process.
func shut(conn *Conn) error {
	runtime.LockOSThread() // what it gives up, the program that replaces this one does not have either
	config, err := receiveConfig(conn)
	if err != nil {
		return err
	}
	l := &confine.List{}
	layer(l, config, "close descriptors", func() { closeOnExec(l) })
	layer(l, config, "standard errors", func() { quiet(l) })
	if err := lockDown(l, config); err != nil {
		return err
	}
	return l.Make()
}

// quiet closes the file into which bubblewrap writes its errors, which is the worker's.
func quiet(l *confine.List) {
	null := l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	l.Do(unix.SYS_DUP3, null, 2, 0)
}

// closeOnExec ends the life of descriptors that serve must not have.
func closeOnExec(l *confine.List) {
	l.Do(unix.SYS_CLOSE_RANGE, fdImage, ^uint32(0), unix.CLOSE_RANGE_CLOEXEC)
}

// becomeUser makes the process the sandbox's user. No other user exists in its namespace, not
// even to own files. It keeps its capabilities.
func becomeUser(l *confine.List, privileged bool) {
	if privileged {
		l.Do(unix.SYS_SETGROUPS, 0, 0)
	}
	l.Do(unix.SYS_SETRESGID, User, User, User)
	l.Do(unix.SYS_SETRESUID, User, User, User)
}

// loopback brings the interface lo up.
func loopback(l *confine.List) {
	request := make([]byte, 40) // struct ifreq
	copy(request, "lo")
	binary.NativeEndian.PutUint16(request[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	socket := l.Do(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	l.Do(unix.SYS_IOCTL, socket, unix.SIOCSIFFLAGS, request)
}

// lockDown gives up every right, in an order in which each step may still be done.
func lockDown(l *confine.List, config Config) error {
	var err error
	layer(l, config, "resource limits", func() { err = limitResources(l, config) })
	if err != nil {
		return &stepError{step: "resource limits", err: err}
	}
	layer(l, config, "bounding set", func() { confine.AddNoBounding(l, !config.Bwrap) })
	layer(l, config, "capabilities", func() { confine.AddNoCaps(l) })
	layer(l, config, "no_new_privs", func() { confine.AddNoNewPrivs(l) })
	if config.Landlock {
		layer(l, config, "Landlock", func() { confine.AddLandlock(l, rules(config)) })
	}
	layer(l, config, "seccomp", func() { err = confine.AddSeccomp(l) })
	if err != nil {
		return &stepError{step: "seccomp", err: err}
	}
	if config.Network == isolation.NetworkAll && !confine.Scopes() {
		layer(l, config, "abstract sockets", func() { confine.AddNoUnix(l) })
	}
	layer(l, config, "exec", func() {
		l.RestoreSignals()
		l.Do(unix.SYS_EXECVE, Image, list(Arg0, stageServe), list(threeThreads))
	})
	return nil
}

// limitResources sets hard limits. Lower ones stay: only the host's root may raise them.
func limitResources(l *confine.List, config Config) error {
	core, err := confine.CoreLimit()
	if err != nil {
		return err
	}
	var processes, signals, queues unix.Rlimit
	if err := errors.Join(unix.Getrlimit(unix.RLIMIT_NPROC, &processes), unix.Getrlimit(unix.RLIMIT_SIGPENDING, &signals),
		unix.Getrlimit(unix.RLIMIT_MSGQUEUE, &queues)); err != nil {
		return err
	}
	for _, limit := range []struct{ resource, value uint64 }{
		{unix.RLIMIT_CORE, core},
		{unix.RLIMIT_NPROC, min(config.Processes+SpareProcesses, processes.Max)},
		{unix.RLIMIT_SIGPENDING, signals.Max / share},
		{unix.RLIMIT_MSGQUEUE, queues.Max / share},
		{unix.RLIMIT_RTPRIO, 0}, // some users may have more, for music
		{unix.RLIMIT_NICE, 0},
	} {
		l.Do(unix.SYS_PRLIMIT64, 0, limit.resource, unsafe.Pointer(&unix.Rlimit{Cur: limit.value, Max: limit.value}), 0)
	}
	return nil
}

// list is a list of strings as exec(2) takes it.
func list(texts ...string) unsafe.Pointer {
	pointers := make([]*byte, len(texts)+1)
	for i, text := range texts {
		pointers[i] = &append([]byte(text), 0)[0]
	}
	return unsafe.Pointer(unsafe.SliceData(pointers))
}

// rules repeat in Landlock's terms what the mounts say already.
func rules(config Config) []confine.Rule {
	all := confine.AccessRead | confine.AccessChange
	r := []confine.Rule{
		{Path: "/", Access: confine.AccessRead},
		{Path: "/proc", Access: confine.AccessRead | confine.AccessDevices},
		{Path: "/dev", Access: confine.AccessDevices},
		{Path: "/dev/shm", Access: all},
		{Path: GuestWorkspace, Access: all},
		{Path: GuestHome, Access: all},
		{Path: GuestTemp, Access: all},
	}
	for _, m := range config.Mounts {
		if m.Write {
			r = append(r, confine.Rule{Path: Guest(m), Access: all, File: !isDir(m.Host)})
		}
	}
	return r
}

// A protected place is mounted on itself, read-only. Nothing can take the place of a mount, nor can
// it be moved or removed; but a directory that one is in could be, with the mount, and another be
// made in its place. So the directories between it and the workspace are mounted on themselves,
// too.

// protect makes the protected places read-only and keeps them where they are. The workspace is the
// working directory.
func (v *view) protect() {
	const attributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	for _, dir := range v.config.Pinned {
		v.Step("keep in its place " + dir.Path)
		v.mountAt(dir.Path, dir.Path, attributes)
	}
	for i, place := range v.config.Protected {
		from := place.Path
		if place.Link != "" {
			from = "/" + shownLink(i)
		}
		v.Step("protect " + place.Path)
		v.mountAt(from, place.Path, attributes|unix.MOUNT_ATTR_RDONLY)
	}
}

// shownLink is where the root has the link that a protected place shows.
func shownLink(i int) string { return "run/protected-" + strconv.Itoa(i) }

// makeLinks makes the links for protected paths in the root, where commands cannot change them.
func (v *view) makeLinks() {
	for i, place := range v.config.Protected {
		if place.Link != "" {
			v.symlink(place.Link, shownLink(i))
		}
	}
}

// mountAt mounts from, which may be a link itself, at place, which may be the same path. The
// self-test finds what another process puts there in this moment.
func (v *view) mountAt(from, place string, attributes uint64) {
	const flags = unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_RECURSIVE | unix.AT_SYMLINK_NOFOLLOW
	tree := v.Do(unix.SYS_OPEN_TREE, unix.AT_FDCWD, from, flags)
	v.set(tree, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attributes)
	v.Do(unix.SYS_MOVE_MOUNT, tree, "", unix.AT_FDCWD, place, unix.MOVE_MOUNT_F_EMPTY_PATH)
	v.Do(unix.SYS_CLOSE, tree)
}

// guarded are the mounts of protected places.
func guarded(config Config) []placement {
	var all []placement
	for _, dir := range config.Pinned {
		all = append(all, placement{path: path.Join(GuestWorkspace, dir.Path), writable: true})
	}
	for _, place := range config.Protected {
		all = append(all, placement{path: path.Join(GuestWorkspace, place.Path)})
	}
	return all
}

// testProtected wants a mount in every place that is protected, of what the worker has found there:
// something else may be of the host, by a link that was there for a moment.
func testProtected(config Config, all []system.Mount) error {
	for _, place := range slices.Concat(config.Pinned, config.Protected) {
		at := path.Join(GuestWorkspace, place.Path)
		if !slices.ContainsFunc(all, func(m system.Mount) bool { return m.Point == at }) {
			return fmt.Errorf("%s is not protected", at)
		}
		if place.Link != "" {
			if leads, err := os.Readlink(at); leads != place.Link {
				return errors.Join(fmt.Errorf("%s leads to %q instead of %s", at, leads, place.Link), err)
			}
			continue
		}
		var stat unix.Stat_t
		if err := unix.Lstat(at, &stat); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
		if found := (Identity{Path: place.Path, Dev: stat.Dev, Ino: stat.Ino}); found != place {
			return fmt.Errorf("%s is not what the workspace has there: %+v instead of %+v", at, found, place)
		}
	}
	return nil
}
