//go:build linux

package probes

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// feature is something of a host that its kernel, its file system, its administrator or the
// container around it may lack or refuse to everybody.
type feature struct {
	// probes are those that can find nothing without it.
	probes []string
	// try uses it, in another way than the probes where there is one. It runs outside of a sandbox,
	// in a directory of the file system that workspaces are on.
	try func(h canary.Host) error
}

// Features returns the features by name, each with the probes that are about it.
func Features() map[string][]string {
	all := map[string][]string{}
	for name, f := range features() {
		all[name] = f.probes
	}
	return all
}

// Keyrings is the feature without which no key can be made.
const Keyrings = "keyrings"

func features() map[string]feature {
	return map[string]feature{
		"io_uring":                      {[]string{"kernel/io-uring-enter", "kernel/io-uring-setup", "kernel/io-uring-register"}, ioUring},
		Keyrings:                        {[]string{"kernel/add-key", "kernel/keyctl", "kernel/request-key", "secret/keys"}, keyring},
		"user namespaces":               {[]string{"namespace/unshare-user", "namespace/clone-user"}, startIn(unix.CLONE_NEWUSER)},
		"mount namespaces":              {[]string{"namespace/unshare-mount"}, startIn(unix.CLONE_NEWUSER | unix.CLONE_NEWNS)},
		"network namespaces":            {[]string{"namespace/clone-net"}, startIn(unix.CLONE_NEWUSER | unix.CLONE_NEWNET)},
		"clone3 of namespaces":          {[]string{"namespace/clone3"}, hasClone3},
		"tracing of one's processes":    {[]string{"target/ptrace"}, traceChild},
		"memory files of processes":     {[]string{"process/worker-mem"}, func(h canary.Host) error { return open(fmt.Sprintf("/proc/%d/mem", h.Worker), unix.O_RDONLY) }},
		"reading memory of processes":   {[]string{"target/vm-readv"}, ownMemory(unix.SYS_PROCESS_VM_READV)},
		"writing memory of processes":   {[]string{"target/vm-writev"}, ownMemory(unix.SYS_PROCESS_VM_WRITEV)},
		"descriptors by pidfd":          {[]string{"target/getfd"}, getfd},
		"signals by pidfd":              {[]string{"target/pidfd"}, func(canary.Host) error { return pidfdSignal(os.Getpid()) }},
		"descriptors of process 1":      {[]string{"process/init-fd"}, func(canary.Host) error { return list("/proc/1/fd") }},
		"whiteouts":                     {[]string{"device/whiteout"}, renamed(unix.RENAME_WHITEOUT)},
		"extended attributes":           {[]string{"file/setxattr"}, onNewFile(func(path string, _ int) error { return setxattr(path) })},
		"programs that change the user": {[]string{"file/setuid-is-inert"}, honoursSetID},
		"freedom of the suite":          {[]string{"privilege/locked-down"}, free("CapInh", "CapPrm", "CapEff", "CapAmb")},
		"capabilities for the suite":    {[]string{"privilege/bounding-set"}, free("CapBnd")},
		"core files":                    {[]string{"privilege/rlimit-core", "secret/core-dump"}, coreFiles},
		"control groups":                {[]string{"secret/cgroup"}, inControlGroup},
		"TCP fast open":                 {[]string{"network/tcp-fast-open"}, tcpFastOpen},
		"IPv6":                          {[]string{"network/tcp-mapped", "network/tcp6"}, func(canary.Host) error { return madeSocket(unix.AF_INET6) }},
		"files without a name":          {[]string{"set-id/no-name", "read-only/no-name"}, func(canary.Host) error { return nameless(".", newName("named")) }},
		"fchmodat2": {[]string{"set-id/fchmodat2", "read-only/fchmodat2"}, onNewFile(func(path string, _ int) error {
			return unix.Fchmodat(unix.AT_FDCWD, path, 0o600, unix.AT_SYMLINK_NOFOLLOW)
		})},
		"openat2": {[]string{"set-id/openat2"}, func(canary.Host) error {
			return create(unix.Openat2(unix.AT_FDCWD, ".", &unix.OpenHow{Flags: unix.O_PATH}))
		}},
		"file flags":               {[]string{"read-only/ioctl-flags"}, onNewFile(func(_ string, fd int) error { return setFlags(fd) })},
		"room in advance":          {[]string{"read-only/fallocate"}, onNewFile(func(_ string, fd int) error { return unix.Fallocate(fd, 0, 0, 1<<16) })},
		"copies within the kernel": {[]string{"read-only/copy-range"}, copied},
		"exchange of names":        {[]string{"read-only/rename-exchange"}, renamed(unix.RENAME_EXCHANGE)},
		"watches of files":         {[]string{"shared/inotify"}, watchFile},
	}
}

// newName is a name for something that this process makes in its directory.
func newName(what string) string { return fmt.Sprintf("feature-%d-%s", os.Getpid(), what) }

// onNewFile uses a file that is made for that.
func onNewFile(use func(path string, fd int) error) func(canary.Host) error {
	return func(canary.Host) error {
		path := newName("file")
		file, err := os.Create(path)
		if err != nil {
			return err
		}
		defer os.Remove(path)
		defer file.Close()
		return use(path, int(file.Fd()))
	}
}

func ioUring(canary.Host) error {
	var parameters [120]byte
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&parameters)), 0)
	if errno != 0 {
		return errno
	}
	return unix.Close(int(fd))
}

// keyring makes a key and finds it in the list.
func keyring(canary.Host) error {
	const name = "toolfleet-feature"
	if _, err := unix.AddKey("user", name, []byte("x"), unix.KEY_SPEC_PROCESS_KEYRING); err != nil {
		return err
	}
	data, err := os.ReadFile("/proc/keys")
	if err == nil && !strings.Contains(string(data), name) {
		err = errors.New("/proc/keys does not list keys")
	}
	return err
}

// startIn starts this program in namespaces.
func startIn(flags uintptr) func(canary.Host) error {
	return func(canary.Host) error {
		cmd := command("/proc/self/exe", "nothing")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		return cmd.Run()
	}
}

// hasClone3 asks clone3, which filters answer with ENOSYS, and makes a user namespace.
func hasClone3(h canary.Host) error {
	if errno := call(unix.SYS_CLONE3, 0, 0); !errors.Is(errno, unix.EINVAL) {
		return errno
	}
	return startIn(unix.CLONE_NEWUSER)(h)
}

// traceChild traces a process of its own, which may be refused as tracing any other one.
func traceChild(h canary.Host) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return attach(h.Worker)
}

func ownMemory(nr uintptr) func(canary.Host) error {
	return func(h canary.Host) error {
		var b [1]byte
		local := vector(b[:])
		remote := []unix.RemoteIovec{{Base: h.Address, Len: 1}}
		if nr == unix.SYS_PROCESS_VM_READV {
			return second(unix.ProcessVMReadv(h.Worker, local, remote, 0))
		}
		b[0] = h.Secret[0]
		return second(unix.ProcessVMWritev(h.Worker, local, remote, 0))
	}
}

// renamed renames a file with flags.
func renamed(flags uint) func(canary.Host) error {
	return onNewFile(func(path string, _ int) error {
		to := newName("other")
		if flags == unix.RENAME_EXCHANGE {
			if err := os.WriteFile(to, nil, 0o600); err != nil {
				return err
			}
		}
		defer os.Remove(to)
		return unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, to, flags)
	})
}

// honoursSetID wants a file system and a process where a file's owner can be taken on.
func honoursSetID(canary.Host) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(".", &fs); err != nil {
		return err
	}
	if fs.Flags&unix.ST_NOSUID != 0 {
		return errors.New("the file system is mounted nosuid")
	}
	if noNewPrivs() {
		return errors.New("this process has no_new_privs")
	}
	return nil
}

// free wants this process to be without a system call filter, or to have one of some sets of
// capabilities.
func free(sets ...string) func(canary.Host) error {
	return func(canary.Host) error {
		fields, err := status("/proc/self/status")
		if err != nil {
			return err
		}
		if fields["NoNewPrivs"] != "1" || fields["Seccomp"] != "2" {
			return nil
		}
		for _, set := range sets {
			if strings.Trim(fields[set], "0") != "" {
				return nil
			}
		}
		return errors.New("the suite itself is confined")
	}
}

// coreFiles wants core files in the directory of the process that ends, and a limit that has room
// for them.
func coreFiles(canary.Host) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return err
	}
	if limit.Max <= 1 {
		return fmt.Errorf("core files have at most %d bytes", limit.Max)
	}
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err == nil && strings.ContainsAny(string(pattern[:min(1, len(pattern))]), "|/\n@") {
		err = fmt.Errorf("core_pattern is %q", strings.TrimSpace(string(pattern)))
	}
	return err
}

func inControlGroup(h canary.Host) error {
	if v := cgroupPath(h); v.Outcome != canary.Leak {
		return errors.New("no group has another path than /: " + v.Detail)
	}
	return nil
}

func tcpFastOpen(canary.Host) error {
	data, err := os.ReadFile("/proc/sys/net/ipv4/tcp_fastopen")
	if err != nil {
		return err
	}
	const client = 1
	if value, err := strconv.Atoi(strings.TrimSpace(string(data))); err != nil || value&client == 0 {
		return fmt.Errorf("net.ipv4.tcp_fastopen is %s", strings.TrimSpace(string(data)))
	}
	return nil
}

func madeSocket(family int) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// copied copies a file to another one by the kernel.
func copied(h canary.Host) error {
	return onNewFile(func(from string, _ int) error {
		if err := os.WriteFile(from, []byte("x"), 0o600); err != nil {
			return err
		}
		return onFD(from, func(in int) error {
			to := newName("copy")
			out, err := os.Create(to)
			if err != nil {
				return err
			}
			defer os.Remove(to)
			defer out.Close()
			return second(unix.CopyFileRange(in, nil, int(out.Fd()), nil, 1, 0))
		})
	})(h)
}

// watchFile waits for itself to open the file that all sandboxes share.
func watchFile(canary.Host) error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, canary.Shared, unix.IN_OPEN); err != nil {
		return err
	}
	if err := open(canary.Shared, unix.O_RDONLY); err != nil {
		return err
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(answerWait/time.Millisecond))
	if err == nil && n == 0 {
		err = errors.New("nothing was reported")
	}
	return err
}
