//go:build linux

package initd

import (
	"maps"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/initproto"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/syscalls"
)

// Fault is something that is missing from a sandbox.
type Fault struct {
	Want string // what the error says
	Root bool   // there only when the worker is root
	// Bwrap says that it can be missing where bubblewrap makes the namespaces, too; OnlyBwrap that
	// it is there only then.
	Bwrap, OnlyBwrap bool

	without uintptr // namespaces
	attr    func(*cloned)
	skip    string // a step that is left out
	also    string // another one
	step    string // a step that is done in another way
	instead func(l *syscalls.List, really func())
}

// faultProcesses is the first number of processes that stands for a fault.
const faultProcesses = 7001

// FaultProcesses is how many processes a sandbox with that fault is limited to: that is known
// before its directories are, and is different for each of them.
func FaultProcesses(name string) int64 {
	return faultProcesses + int64(slices.Index(slices.Sorted(maps.Keys(Faults)), name))
}

// then makes a call after a step.
func then(number uintptr, args ...any) func(*syscalls.List, func()) {
	return func(l *syscalls.List, really func()) {
		really()
		l.Do(number, args...)
	}
}

// tmpfs mounts something after a step.
func tmpfs(at string, flags uintptr) func(*syscalls.List, func()) {
	return then(unix.SYS_MOUNT, "tmpfs", at, "tmpfs", flags, 0)
}

// ambient gives a capability to the program that is executed.
func ambient(capability int) func(*syscalls.List, func()) {
	return func(l *syscalls.List, really func()) {
		really()
		header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		sets := &[2]unix.CapUserData{{Effective: ^uint32(0), Permitted: ^uint32(0), Inheritable: 1 << capability}, {Effective: 1, Permitted: 1}}
		l.Do(unix.SYS_CAPSET, unsafe.Pointer(header), unsafe.Pointer(sets))
		l.Do(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, capability, 0, 0)
	}
}

// unpinned protects a place, but not the directory that it is in.
func unpinned(l *syscalls.List, _ func()) {
	v := &view{List: l}
	v.mountAt("d/p", "d/p", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_RDONLY)
}

// Faults are all of them by name.
var Faults = map[string]Fault{
	// Namespaces. Without a user namespace nobody but root can make the others, and it has no
	// rights in them as the sandbox's user.
	"no user namespace":    {Root: true, without: unix.CLONE_NEWUSER, Want: "host name: operation not permitted"},
	"no mount namespace":   {without: unix.CLONE_NEWNS, Want: "private mounts"},
	"no process namespace": {without: unix.CLONE_NEWPID, Want: "/proc"},
	"no network namespace": {without: unix.CLONE_NEWNET, skip: "loopback", Want: "the net namespace is the worker's"},
	"no IPC namespace":     {without: unix.CLONE_NEWIPC, Want: "the ipc namespace is the worker's"},
	"no name namespace":    {without: unix.CLONE_NEWUTS, skip: "host name", Want: "the uts namespace is the worker's"},
	"no cgroup namespace":  {skip: "control group namespace", Want: "the cgroup namespace is the worker's"},
	// Users.
	"a group of the worker": {Root: true, step: "user", Want: "groups are [1000], must be none", instead: then(unix.SYS_SETGROUPS, 1, unsafe.Pointer(&[]uint32{User}[0]))},
	"two users":             {Root: true, Want: "uid_map is", attr: func(c *cloned) { c.uids = append(c.uids, ids{0, 1}) }},
	"two groups":            {Root: true, Want: "gid_map is", attr: func(c *cloned) { c.gids = append(c.gids, ids{0, 1}) }},
	// Mounts.
	"shared mounts":                  {Want: "is not private: shared:", step: "pivot_root", instead: then(unix.SYS_MOUNT, 0, "/", 0, unix.MS_REC|unix.MS_SHARED, 0)},
	"root that can be written to":    {skip: "read-only root", Want: "can be written to"},
	"pressure that can be asked for": {skip: "pressure of the host", Want: "self-test: pressure of the host"},
	"keys that can be read":          {skip: "keys of the host", Want: "self-test: keys of the host"},
	"the host's root kept": {step: "pivot_root", Want: "the host's root is still there", instead: func(l *syscalls.List, _ func()) {
		l.Do(unix.SYS_PIVOT_ROOT, ".", ".")
		l.Do(unix.SYS_CHDIR, "/")
	}},
	"one more mount":       {step: "directories", Want: "mount /run was not asked for", instead: tmpfs("run", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY)},
	"set-user-ID programs": {step: "directories", Want: "mount /tmp has set-user-ID programs or devices", instead: tmpfs("tmp", unix.MS_NODEV)},
	"devices":              {step: "directories", skip: "protected places", Want: "mount /workspace has set-user-ID programs or devices", instead: tmpfs("workspace", unix.MS_NOSUID)},
	"nothing protected":    {skip: "protected places", Want: "/workspace/d is not protected"},
	"directory not pinned": {step: "protected places", Want: "/workspace/d is not protected", instead: unpinned},
	"protected place that can be written to": {step: "protected places", Want: "mount /workspace/d/p can be written to", instead: func(l *syscalls.List, really func()) {
		really()
		attr := &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}
		l.Do(unix.SYS_MOUNT_SETATTR, unix.AT_FDCWD, "d/p", 0, unsafe.Pointer(attr), unsafe.Sizeof(*attr))
	}},
	"another directory in a protected place": {step: "protected places", Want: "/workspace/d/p is not what the workspace has there", instead: func(l *syscalls.List, really func()) {
		l.Do(unix.SYS_RENAMEAT2, unix.AT_FDCWD, "d/other", unix.AT_FDCWD, "d/p", unix.RENAME_EXCHANGE)
		really()
	}},
	"no link": {skip: StepLink, Want: "self-test: link: network is unreachable"},
	// Rights.
	"bounding set kept":       {skip: "bounding set", Want: "CapBnd is"},
	"capabilities kept":       {step: "user", skip: "capabilities", Want: "CapEff is", instead: ambient(unix.CAP_SYS_ADMIN)},
	"one capability":          {step: "user", skip: "capabilities", Want: "CapPrm is", instead: ambient(unix.CAP_NET_ADMIN)},
	"new privileges possible": {skip: "no_new_privs", also: "capabilities", Want: "NoNewPrivs is"},
	"no Landlock":             {Bwrap: true, skip: "Landlock", Want: "self-test: device file"},
	"no seccomp":              {Bwrap: true, skip: "seccomp", Want: "Seccomp is"},
	"core files":              {Bwrap: true, skip: "resource limits", Want: "core files"},
	"a descriptor more": {Bwrap: true, step: "exec", Want: "is /usr", instead: func(l *syscalls.List, really func()) {
		l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "/usr", unix.O_RDONLY, 0)
		really()
	}},
	"file of bubblewrap's errors": {Bwrap: true, OnlyBwrap: true, skip: "standard errors", Want: "descriptor 2 is"},
	"the program kept open":       {step: "close descriptors", Want: "self-test: descriptors", instead: then(unix.SYS_DUP, fdImage)},
}

// A sandbox's first process is this test's program too.
func init() { //nolint:gochecknoinits // as above
	seam.clone = func(config initproto.Config, c *cloned) {
		f := faultOf(config)
		c.flags &^= f.without
		if f.attr != nil {
			f.attr(c)
		}
	}
	seam.step = func(l *syscalls.List, config initproto.Config, name string, really func()) {
		switch f := faultOf(config); name {
		case f.skip, f.also:
		case f.step:
			f.instead(l, really)
		default:
			really()
		}
	}
}

// faultOf returns the fault of a sandbox; the zero value has no effect.
func faultOf(config initproto.Config) Fault {
	for name, f := range Faults {
		if int64(config.Processes) == FaultProcesses(name) {
			return f
		}
	}
	return Fault{}
}
