//go:build linux

package initd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// Fault is something that is missing from a sandbox.
type Fault struct {
	Want string // what the error says
	Root bool   // there only when the worker is root
	// Bwrap says that it can be missing where bubblewrap makes the namespaces, too; OnlyBwrap that it is there only then.
	Bwrap, OnlyBwrap bool

	without uintptr // namespaces
	attr    func(*syscall.SysProcAttr)
	skip    string // a step that is left out
	also    string // another one
	step    string // a step that is done in another way
	instead func(really func() error) error
}

// faultPrefix begins the name of a workspace whose sandbox has a fault.
const faultPrefix = "fault-"

// FaultDir is the name of the workspace of a sandbox with that fault.
func FaultDir(name string) string { return faultPrefix + strings.ReplaceAll(name, " ", "-") }

// then does f after a step.
func then(f func() error) func(func() error) error {
	return func(really func() error) error {
		if err := really(); err != nil {
			return err
		}
		return f()
	}
}

// Faults are all of them by name.
var Faults = map[string]Fault{
	// Namespaces.
	// Without a user namespace nobody but root can make the others, and it has no rights in them as the sandbox's user.
	"no user namespace": {Root: true, without: unix.CLONE_NEWUSER, Want: "host name: operation not permitted", attr: func(a *syscall.SysProcAttr) {
		a.UidMappings, a.GidMappings = nil, nil
	}},
	"no mount namespace":   {without: unix.CLONE_NEWNS, Want: "private mounts"},
	"no process namespace": {without: unix.CLONE_NEWPID, Want: "/proc"},
	"no network namespace": {without: unix.CLONE_NEWNET, skip: "loopback", Want: "the net namespace is the worker's"},
	"no IPC namespace":     {without: unix.CLONE_NEWIPC, Want: "the ipc namespace is the worker's"},
	"no name namespace":    {without: unix.CLONE_NEWUTS, skip: "host name", Want: "the uts namespace is the worker's"},
	"no cgroup namespace":  {without: unix.CLONE_NEWCGROUP, Want: "the cgroup namespace is the worker's"},
	// Users.
	"a group of the worker": {Root: true, step: "user", Want: "groups are [1000], must be none", instead: then(func() error {
		group := uint32(User)
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, 1, uintptr(unsafe.Pointer(&group)), 0); errno != 0 {
			return errno
		}
		return nil
	})},
	"two users": {Root: true, Want: "uid_map is", attr: func(a *syscall.SysProcAttr) {
		a.UidMappings = append(a.UidMappings, syscall.SysProcIDMap{ContainerID: 0, HostID: 1, Size: 1})
	}},
	"two groups": {Root: true, Want: "gid_map is", attr: func(a *syscall.SysProcAttr) {
		a.GidMappings = append(a.GidMappings, syscall.SysProcIDMap{ContainerID: 0, HostID: 1, Size: 1})
	}},
	// Mounts.
	"shared mounts": {Want: "is not private: shared:", step: "pivot_root", instead: then(func() error {
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
	})},
	"root that can be written to": {skip: "read-only root", Want: "can be written to"},
	"the host's root kept": {step: "pivot_root", Want: "the host's root is still there", instead: func(func() error) error {
		return errors.Join(unix.PivotRoot(".", "."), os.Chdir(GuestWorkspace))
	}},
	"one more mount": {step: "directories", Want: "mount /run was not asked for", instead: then(func() error {
		return unix.Mount("tmpfs", "run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_RDONLY, "")
	})},
	"set-user-ID programs": {step: "directories", Want: "mount /tmp has set-user-ID programs or devices", instead: then(func() error {
		return unix.Mount("tmpfs", "tmp", "tmpfs", unix.MS_NODEV, "")
	})},
	"devices": {step: "directories", Want: "mount /workspace has set-user-ID programs or devices", instead: then(func() error {
		return unix.Mount("tmpfs", "workspace", "tmpfs", unix.MS_NOSUID, "")
	})},
	// Rights.
	"bounding set kept": {skip: "bounding set", Want: "CapBnd is"},
	"capabilities kept": {skip: "capabilities", Want: "CapEff is"},
	"one capability": {step: "capabilities", Want: "CapPrm is", instead: func(func() error) error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		one := [2]unix.CapUserData{{Permitted: 1 << unix.CAP_NET_ADMIN, Inheritable: 1 << unix.CAP_NET_ADMIN}}
		return errors.Join(unix.Capset(&header, &one[0]), unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_NET_ADMIN, 0, 0))
	}},
	"new privileges possible": {skip: "no_new_privs", also: "capabilities", Want: "NoNewPrivs is"},
	"no Landlock":             {Bwrap: true, skip: "Landlock", Want: "self-test: device file"},
	"no seccomp":              {Bwrap: true, skip: "seccomp", Want: "Seccomp is"},
	"core files":              {Bwrap: true, skip: "resource limits", Want: "core files"},
	"a descriptor more": {Bwrap: true, step: "exec", Want: "is /usr", instead: func(really func() error) error {
		if _, err := unix.Open("/usr", unix.O_RDONLY, 0); err != nil {
			return err
		}
		return really()
	}},
	"file of bubblewrap's errors":         {Bwrap: true, OnlyBwrap: true, skip: "standard errors", Want: "descriptor 2 is"},
	"directories of the worker kept open": {Root: true, skip: "close descriptors", Want: "self-test: descriptors"},
}

// A sandbox's first process is this test's program too.
func init() { //nolint:gochecknoinits // as above
	seam.clone = func(config wire.Config, attr *syscall.SysProcAttr) {
		f := faultOf(config)
		attr.Cloneflags &^= f.without
		if f.attr != nil {
			f.attr(attr)
		}
	}
	seam.step = func(config wire.Config, name string, really func() error) error {
		switch f := faultOf(config); name {
		case f.skip, f.also:
			return nil
		case f.step:
			return f.instead(really)
		default:
			return really()
		}
	}
}

// faultOf returns the fault of a sandbox; the zero value has no effect.
func faultOf(config wire.Config) Fault {
	for name, f := range Faults {
		if filepath.Base(config.Workspace) == FaultDir(name) {
			return f
		}
	}
	return Fault{}
}
