//go:build linux

package initd

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/confine"
	"github.com/toolfleet/toolfleet/pkg/sandbox/internal/wire"
)

// HostName is the name of the host in a sandbox.
const HostName = "sandbox"

// spareProcesses is how many processes and threads the first process itself may need.
const spareProcesses = 32

// setup makes the sandbox around itself and replaces itself by serve. It works on one
// thread: what that gives up, the program that replaces it does not have either.
func setup(conn *wire.Conn) error {
	runtime.LockOSThread()
	config, err := receiveConfig(conn)
	if err != nil {
		return err
	}
	if err := layer(config, "user", func() error { return becomeUser(config.Privileged) }); err != nil {
		return err
	}
	if err := layer(config, "close descriptors", func() error {
		return unix.CloseRange(fdMounts, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // what launch has opened is used before the exec
	}); err != nil {
		return err
	}
	if err := layer(config, "host name", func() error { return unix.Sethostname([]byte(HostName)) }); err != nil {
		return err
	}
	if config.Network != sandbox.NetworkAll {
		if err := layer(config, "loopback", loopback); err != nil {
			return err
		}
	}
	if config.Network == sandbox.NetworkProxy {
		if err := step("listener of the proxy", func() error { return sendListener(conn) }); err != nil {
			return err
		}
	}
	if err := enterRoot(config); err != nil {
		return err
	}
	return lockDown(config)
}

// shut is what is left of setup when another program, bwrap, has made the namespaces and the
// root, and has this one as its first process.
func shut(conn *wire.Conn) error {
	runtime.LockOSThread()
	config, err := receiveConfig(conn)
	if err != nil {
		return err
	}
	if err := layer(config, "close descriptors", func() error { return unix.CloseRange(fdMounts, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) }); err != nil {
		return err
	}
	if err := layer(config, "standard errors", quiet); err != nil {
		return err
	}
	if config.Network == sandbox.NetworkProxy {
		if err := step("listener of the proxy", func() error { return sendListener(conn) }); err != nil {
			return err
		}
	}
	return lockDown(config)
}

// quiet closes the file into which bubblewrap writes its errors, which is the worker's.
func quiet() error {
	null, err := unix.Open("/dev/null", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(null)
	return unix.Dup3(null, 2, 0)
}

// loopback brings the interface lo up.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request)
}

// ProxyPort is where a sandbox's proxy listens on its loopback, the usual port of one.
const ProxyPort = 3128

// sendListener gives the worker a listener that only this sandbox reaches: it is made in the
// sandbox's network, and served from without.
func sendListener(conn *wire.Conn) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: ProxyPort, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(fd, unix.SOMAXCONN); err != nil {
		return err
	}
	return conn.Send(0, wire.KindListener, nil, nil, fd)
}

// lockDown gives up every right, in an order in which each step may still be done.
func lockDown(config wire.Config) error {
	if err := layer(config, "resource limits", func() error {
		processes := config.Processes + spareProcesses
		return errors.Join(
			unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: confine.NoCore, Max: confine.NoCore}),
			unix.Setrlimit(unix.RLIMIT_NPROC, &unix.Rlimit{Cur: processes, Max: processes}),
		)
	}); err != nil {
		return err
	}
	if err := layer(config, "bounding set", confine.DropBounding); err != nil {
		return err
	}
	if err := layer(config, "capabilities", confine.DropCaps); err != nil {
		return err
	}
	if err := layer(config, "no_new_privs", confine.NoNewPrivs); err != nil {
		return err
	}
	if config.Landlock {
		if err := layer(config, "Landlock", func() error { return confine.Landlock(rules(config), true) }); err != nil {
			return err
		}
	}
	if err := layer(config, "seccomp", confine.Seccomp); err != nil {
		return err
	}
	if err := layer(config, "self-test: view", func() error { return testView(config) }); err != nil {
		return err
	}
	unix.CloseOnExec(fdImage)
	return layer(config, "exec", func() error { return unix.Exec(Image, []string{Arg0, stageServe}, []string{twoThreads}) })
}

// becomeUser makes this thread, and so what it executes, the sandbox's user. Nobody else
// exists in its namespace, not even to own files. It keeps its capabilities.
func becomeUser(privileged bool) error {
	if privileged {
		if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
			return fmt.Errorf("drop groups: %w", errno)
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESGID, User, User, User); errno != 0 {
		return fmt.Errorf("group: %w", errno)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, User, User, User); errno != 0 {
		return fmt.Errorf("user: %w", errno)
	}
	return nil
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
			r = append(r, confine.Rule{Path: Guest(m), Access: all})
		}
	}
	return r
}
