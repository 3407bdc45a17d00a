//go:build linux

package initd

import (
	"encoding/binary"
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/calls"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/internal/sandbox/internal/wire"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
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
func setup(config wire.Config, from inherited) (*calls.List, error) {
	l := &calls.List{}
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

// shut is what is left of setup when another program, bwrap, has made the namespaces and the
// root, and has this one as its first process.
func shut(conn *wire.Conn) error {
	runtime.LockOSThread() // what it gives up, the program that replaces this one does not have either
	config, err := receiveConfig(conn)
	if err != nil {
		return err
	}
	l := &calls.List{}
	layer(l, config, "close descriptors", func() { closeOnExec(l) })
	layer(l, config, "standard errors", func() { quiet(l) })
	if err := lockDown(l, config); err != nil {
		return err
	}
	return l.Make()
}

// quiet closes the file into which bubblewrap writes its errors, which is the worker's.
func quiet(l *calls.List) {
	null := l.Do(unix.SYS_OPENAT, unix.AT_FDCWD, "/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	l.Do(unix.SYS_DUP3, null, 2, 0)
}

// closeOnExec ends the life of descriptors that serve must not have.
func closeOnExec(l *calls.List) {
	l.Do(unix.SYS_CLOSE_RANGE, fdImage, ^uint32(0), unix.CLOSE_RANGE_CLOEXEC)
}

// becomeUser makes the process the sandbox's user. No other user exists in its namespace, not
// even to own files. It keeps its capabilities.
func becomeUser(l *calls.List, privileged bool) {
	if privileged {
		l.Do(unix.SYS_SETGROUPS, 0, 0)
	}
	l.Do(unix.SYS_SETRESGID, User, User, User)
	l.Do(unix.SYS_SETRESUID, User, User, User)
}

// loopback brings the interface lo up.
func loopback(l *calls.List) {
	request := make([]byte, 40) // struct ifreq
	copy(request, "lo")
	binary.NativeEndian.PutUint16(request[unix.IFNAMSIZ:], unix.IFF_UP|unix.IFF_RUNNING)
	socket := l.Do(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	l.Do(unix.SYS_IOCTL, socket, unix.SIOCSIFFLAGS, request)
}

// lockDown gives up every right, in an order in which each step may still be done.
func lockDown(l *calls.List, config wire.Config) error {
	var err error
	layer(l, config, "resource limits", func() { err = limitResources(l, config) })
	if err != nil {
		return &stepError{step: "resource limits", err: err}
	}
	layer(l, config, "bounding set", func() { confine.AddNoBounding(l, !config.Bwrap) })
	layer(l, config, "capabilities", func() { confine.AddNoCaps(l) })
	layer(l, config, "no_new_privs", func() { confine.AddNoNewPrivs(l) })
	if config.Landlock {
		layer(l, config, "Landlock", func() { confine.AddLandlock(l, confine.LandlockABI(), rules(config), true) })
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
func limitResources(l *calls.List, config wire.Config) error {
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
func rules(config wire.Config) []confine.Rule {
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
