//go:build linux

package probes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// writer is what a command that may write tells of itself, in one line: another command of the
// same sandbox, with a file open for writing and mapped.
type writer struct {
	pid, fd int
	address uintptr
}

// readOnly is a way to change a workspace from a command that may only read it.
type readOnly struct {
	try func(w writer) error
	// direct says that it works for a command that may write. If it did not, it would
	// find nothing.
	direct bool
}

// Files of the directory that is tried to be changed.
const (
	roDir    = canary.ReadOnlyDir
	roTarget = roDir + "/target"
	roFIFO   = roDir + "/fifo"
	roOther  = roDir + "/other"
	roSub    = roDir + "/sub"
	roNew    = roDir + "/new"
)

// ReadOnlyNames returns the names of the ways to change a workspace that is read-only, and
// whether they work where it is not.
func ReadOnlyNames() map[string]bool {
	all := map[string]bool{}
	for name, r := range readOnlyProbes() {
		all[name] = r.direct
	}
	return all
}

func readOnlyProbes() map[string]readOnly {
	all := map[string]readOnly{}
	for name, try := range directChanges() {
		all["read-only/"+name] = readOnly{func(writer) error { return try() }, true}
	}
	for name, try := range indirectChanges() {
		all["read-only/"+name] = readOnly{func(writer) error { return try() }, false}
	}
	for name, try := range changesByWriter() {
		all["read-only/"+name] = readOnly{try, false}
	}
	return all
}

// directChanges are what a command that may write does to change something.
func directChanges() map[string]func() error {
	all := map[string]func() error{
		"write":           func() error { return writeTo(roTarget, unix.O_WRONLY) },
		"append":          func() error { return writeTo(roTarget, unix.O_WRONLY|unix.O_APPEND) },
		"write-direct":    func() error { return writeTo(roDir+"/sub/../target", unix.O_RDWR|unix.O_SYNC) },
		"write-by-link":   func() error { return writeTo(roDir+"/link", unix.O_WRONLY) },
		"write-by-cwd":    func() error { return writeTo("/proc/self/cwd/"+roTarget, unix.O_WRONLY) },
		"write-by-root":   func() error { return writeTo("/proc/self/root"+workspacePath(roTarget), unix.O_WRONLY) },
		"open-truncates":  func() error { return open(roTarget, unix.O_RDONLY|unix.O_TRUNC) },
		"truncate":        func() error { return unix.Truncate(roTarget, 1) },
		"create":          func() error { return open(roNew, unix.O_RDONLY|unix.O_CREAT) },
		"mkdir":           func() error { return unix.Mkdir(roNew, 0o755) },
		"mkfifo":          func() error { return unix.Mkfifo(roNew, 0o644) },
		"symlink":         func() error { return unix.Symlink("x", roNew) },
		"link":            func() error { return unix.Link(roTarget, roNew) },
		"link-by-fd":      linkByFD,
		"unlink":          func() error { return unix.Unlink(roOther) },
		"rmdir":           func() error { return unix.Rmdir(roSub) },
		"rename":          func() error { return unix.Rename(roTarget, roNew) },
		"rename-into":     func() error { return unix.Rename(roTarget, roSub+"/target") },
		"rename-exchange": func() error { return exchange(roTarget, roOther) },
		"bind":            bindSocket,
		"no-name":         func() error { return nameless(roDir, roNew) },
		"chmod":           func() error { return unix.Chmod(roTarget, 0o600) },
		"chmod-dir":       func() error { return unix.Chmod(roDir, 0o700) },
		"fchmod":          func() error { return onFD(roTarget, func(fd int) error { return unix.Fchmod(fd, 0o600) }) },
		"fchmodat2":       func() error { return unix.Fchmodat(unix.AT_FDCWD, roTarget, 0o600, unix.AT_SYMLINK_NOFOLLOW) },
		"chown":           func() error { return unix.Chown(roTarget, unix.Getuid(), unix.Getgid()) },
		"fchown": func() error {
			return onFD(roTarget, func(fd int) error { return unix.Fchown(fd, unix.Getuid(), unix.Getgid()) })
		},
		"fchownat":  func() error { return unix.Fchownat(unix.AT_FDCWD, roTarget, unix.Getuid(), unix.Getgid(), 0) },
		"lchown":    func() error { return unix.Lchown(roDir+"/link", unix.Getuid(), unix.Getgid()) },
		"utimensat": func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, roTarget, make([]unix.Timespec, 2), 0) },
		"utimes":    func() error { return unix.Utimes(roTarget, make([]unix.Timeval, 2)) },
		"futimens": func() error {
			return onFD(roTarget, func(fd int) error { return unix.Futimes(fd, make([]unix.Timeval, 2)) })
		},
		"ioctl-flags": func() error { return onFD(roTarget, setFlags) },
		"mapped":      mapShared,
		"fallocate": func() error {
			return onFDFor(roTarget, unix.O_RDWR, func(fd int) error { return unix.Fallocate(fd, 0, 0, 1<<16) })
		},
		"copy-range":        copyRange,
		"child":             func() error { return command("sh", "-c", "echo x >"+roTarget).Run() },
		"daemon":            func() error { return command("setsid", "-w", "sh", "-c", "(echo x >"+roTarget+")").Run() },
		"another-directory": func() error { return errors.Join(unix.Chdir(roDir), writeTo("target", unix.O_WRONLY)) },
	}
	return all
}

// indirectChanges cannot work anywhere if the kernel is right, or are denied to everybody.
func indirectChanges() map[string]func() error {
	return map[string]func() error{
		"ftruncate-read": func() error { return onFD(roTarget, func(fd int) error { return unix.Ftruncate(fd, 1) }) },
		"write-read":     func() error { return onFD(roTarget, func(fd int) error { return second(unix.Write(fd, []byte("x"))) }) },
		"map-read": func() error {
			return onFD(roTarget, func(fd int) error { return mapFD(fd, unix.PROT_READ|unix.PROT_WRITE) })
		},
		"map-protect":    mapProtect,
		"map-own-memory": mapOwnMemory,
		"reopen":         func() error { return reopenFor(roTarget, unix.O_RDONLY) },
		"reopen-path":    func() error { return reopenFor(roTarget, unix.O_PATH) },
		"reopen-dir": func() error {
			return onFDFor(roDir, unix.O_PATH|unix.O_DIRECTORY, func(fd int) error { return writeAt(fd, "target") })
		},
		"access-mode-3": func() error {
			return onFDFor(roTarget, unix.O_ACCMODE, func(fd int) error { return second(unix.Write(fd, []byte("x"))) })
		},
		"rename-out":    func() error { return unix.Rename(roTarget, filepath.Join(os.TempDir(), "target")) },
		"link-out":      linkOut,
		"setxattr":      func() error { return unix.Setxattr(roTarget, "user.probe", []byte("x"), 0) },
		"removexattr":   func() error { return unix.Removexattr(roTarget, "user.probe") },
		"ioctl-xattr":   func() error { return onFD(roTarget, setProject) },
		"ioctl-version": func() error { return onFD(roTarget, setVersion(0x40087602)) },
		"ioctl-ext4":    func() error { return onFD(roTarget, setVersion(0x40086604)) },
		"ioctl-verity":  func() error { return onFD(roTarget, ioctl(0x40806685)) },
		"ioctl-btrfs":   func() error { return onFDFor(roDir, unix.O_RDONLY, ioctl(0x5000940e)) },
		"ioctl-freeze":  func() error { return onFDFor(roDir, unix.O_RDONLY, ioctl(0xc0045877)) },
		"file-setattr":  func() error { return errnoOr(call(unix.SYS_FILE_SETATTR, ^uintptr(99), 0, 0, 0, 0)) },
		"remount":       func() error { return unix.Mount("", workspacePath(""), "", unix.MS_REMOUNT|unix.MS_BIND, "") },
		"unshare":       func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		"io-uring":      func() error { return errnoOr(call(unix.SYS_IO_URING_SETUP, 1, 0)) },
		"by-handle":     func() error { return errnoOr(call(unix.SYS_NAME_TO_HANDLE_AT, ^uintptr(99), 0, 0, 0, 0)) },
		"core-file":     coreFile,
		"no-name-out":   func() error { return nameless(os.TempDir(), roNew) },
	}
}

// changesByWriter have the command that may write do it.
func changesByWriter() map[string]func(writer) error {
	return map[string]func(writer) error{
		"writer-fd":      func(w writer) error { return writeTo(fmt.Sprintf("/proc/%d/fd/%d", w.pid, w.fd), unix.O_WRONLY) },
		"writer-fd-link": func(w writer) error { return second(os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", w.pid, w.fd))) },
		"writer-root": func(w writer) error {
			return writeTo(fmt.Sprintf("/proc/%d/root%s", w.pid, workspacePath(roTarget)), unix.O_WRONLY)
		},
		"writer-cwd":      func(w writer) error { return writeTo(fmt.Sprintf("/proc/%d/cwd/%s", w.pid, roTarget), unix.O_WRONLY) },
		"writer-memory":   writerMemory,
		"writer-vm":       writerVM,
		"writer-map-file": func(w writer) error { return list(fmt.Sprintf("/proc/%d/map_files", w.pid)) },
		"writer-trace":    func(w writer) error { return attach(w.pid) },
		"writer-getfd":    writerFD,
		"writer-signal":   func(w writer) error { return unix.Kill(w.pid, unix.SIGCONT) },
		"writer-kill-all": killAll,
		"writer-fifo":     func(writer) error { return writeTo(roFIFO, unix.O_WRONLY|unix.O_NONBLOCK) },
		"writer-abstract": func(writer) error { return tell("@" + canary.ReadOnlySocket) },
		"writer-environ":  func(w writer) error { return open(fmt.Sprintf("/proc/%d/environ", w.pid), unix.O_RDONLY) },
		"writer-setns":    func(w writer) error { return open(fmt.Sprintf("/proc/%d/ns/mnt", w.pid), unix.O_RDONLY) },
		"writer-stdin":    func(w writer) error { return writeTo(fmt.Sprintf("/proc/%d/fd/0", w.pid), unix.O_WRONLY) },
	}
}

// mainReadOnly tries one.
func mainReadOnly(name string, args []string) {
	var w writer
	if len(args) > 0 {
		if _, err := fmt.Sscan(strings.Join(args, " "), &w.pid, &w.fd, &w.address); err != nil {
			fail(err)
		}
	}
	r, known := readOnlyProbes()[name]
	if !known {
		fail(fmt.Errorf("unknown probe %q", name))
	}
	answer(attempt(func(canary.Host) canary.Verdict { return judge(r.try(w)) }, canary.Host{}))
}

// beReadOnlyWriter may write. It says what it has open, and writes when a fifo, an abstract
// socket or a signal asks it to: somebody who must not write may not reach it.
func beReadOnlyWriter() {
	file, err := os.OpenFile(roTarget, os.O_RDWR, 0)
	if err != nil {
		fail(err)
	}
	data, err := unix.Mmap(int(file.Fd()), 0, 6, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		fail(err)
	}
	fifo, err := os.OpenFile(roFIFO, os.O_RDWR, 0)
	if err != nil {
		fail(err)
	}
	if listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", "@"+canary.ReadOnlySocket); err == nil {
		go obeyAll(listener, file)
	} // else a sandbox without sockets
	_, _ = fmt.Fprintln(os.Stdout, os.Getpid(), file.Fd(), uintptr(unsafe.Pointer(&data[0])))
	for {
		obey(io.LimitReader(fifo, 1), file)
	}
}

func obeyAll(listener net.Listener, file *os.File) {
	for {
		c, err := listener.Accept()
		if err != nil {
			return
		}
		obey(c, file)
		_ = c.Close()
	}
}

// obey writes what it is told.
func obey(from io.Reader, file *os.File) {
	if b, err := bufio.NewReader(from).ReadByte(); err == nil {
		_, _ = file.WriteAt([]byte{b}, 0)
	}
}

func second[T any](_ T, err error) error { return err }

func errnoOr(errno syscall.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// onFD opens a file to read and uses the descriptor.
func onFD(path string, f func(fd int) error) error { return onFDFor(path, unix.O_RDONLY, f) }

func onFDFor(path string, flags int, f func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func writeTo(path string, flags int) error {
	return onFDFor(path, flags, func(fd int) error { return second(unix.Write(fd, []byte("x"))) })
}

func writeAt(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return second(unix.Write(fd, []byte("x")))
}

// reopenFor opens a file in a harmless way and then again, by the descriptor.
func reopenFor(path string, flags int) error {
	return onFDFor(path, flags, func(fd int) error { return writeTo("/proc/self/fd/"+strconv.Itoa(fd), unix.O_WRONLY) })
}

func linkByFD() error {
	return onFDFor(roTarget, unix.O_PATH, func(fd int) error {
		return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, roNew, unix.AT_SYMLINK_FOLLOW)
	})
}

// linkOut makes a second name of a file where everybody may write, and writes by that.
func linkOut() error {
	path := filepath.Join(os.TempDir(), "second")
	_ = os.Remove(path)
	return errors.Join(unix.Link(roTarget, path), writeTo(path, unix.O_WRONLY))
}

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

func bindSocket() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: roNew})
}

// nameless makes a file without a name in a directory, and gives it one.
func nameless(dir, path string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
}

func setFlags(fd int) error {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	const noDump = 0x40
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags^noDump)
}

// setProject sets the attributes of a file as they are.
func setProject(fd int) error {
	var attr [28]byte
	if err := errnoOr(call(unix.SYS_IOCTL, uintptr(fd), 0x801c581f, uintptr(unsafe.Pointer(&attr)))); err != nil {
		return err
	}
	return errnoOr(call(unix.SYS_IOCTL, uintptr(fd), 0x401c5820, uintptr(unsafe.Pointer(&attr))))
}

func setVersion(request uintptr) func(int) error {
	return func(fd int) error {
		version := uint64(7)
		return errnoOr(call(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&version))))
	}
}

// ioctl makes a request with an argument that nobody can read.
func ioctl(request uintptr) func(int) error {
	return func(fd int) error { return errnoOr(call(unix.SYS_IOCTL, uintptr(fd), request, 1)) }
}

func mapShared() error {
	return onFDFor(roTarget, unix.O_RDWR, func(fd int) error { return mapFD(fd, unix.PROT_READ|unix.PROT_WRITE) })
}

// mapFD maps a file and writes to the memory.
func mapFD(fd, prot int) error {
	data, err := unix.Mmap(fd, 0, 1, prot, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	data[0] = 'x'
	return errors.Join(unix.Msync(data, unix.MS_SYNC), unix.Munmap(data))
}

// mapProtect maps a file to read, and then wants to write.
func mapProtect() error {
	return onFD(roTarget, func(fd int) error {
		data, err := unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(data) }()
		if err := unix.Mprotect(data, unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return err
		}
		data[0] = 'x'
		return nil
	})
}

// mapOwnMemory writes to a mapped file by this process's own memory file, which ignores
// what the mapping allows.
func mapOwnMemory() error {
	return onFD(roTarget, func(fd int) error {
		data, err := unix.Mmap(fd, 0, 1, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Munmap(data) }()
		memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer memory.Close()
		return second(memory.WriteAt([]byte("x"), int64(uintptr(unsafe.Pointer(&data[0])))))
	})
}

func copyRange() error {
	return onFD(roOther, func(from int) error {
		return onFDFor(roTarget, unix.O_WRONLY, func(to int) error { return second(unix.CopyFileRange(from, nil, to, nil, 5, 0)) })
	})
}

// coreFile has a process end so that its memory is written to its directory.
func coreFile() error {
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	_ = command("sh", "-c", "cd "+roDir+" && kill -SEGV $$").Run()
	found, err := filepath.Glob(roDir + "/core*")
	if err == nil && len(found) == 0 {
		err = errors.New("none is made")
	}
	return err
}

// killAll kills whom it may, and looks whether that was the writer.
func killAll(w writer) error {
	_ = unix.Kill(-1, unix.SIGKILL)
	if err := unix.Kill(w.pid, 0); !errors.Is(err, unix.ESRCH) {
		return cmpErr(err, errAnother)
	}
	return nil
}

// workspacePath is the absolute path of something in the workspace.
func workspacePath(name string) string {
	dir, err := os.Getwd()
	if err != nil {
		fail(err)
	}
	return filepath.Join(dir, name)
}

func writerMemory(w writer) error {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", w.pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	return second(memory.WriteAt([]byte("x"), int64(w.address)))
}

func writerVM(w writer) error {
	x := []byte("x")
	local := []unix.Iovec{{Base: &x[0], Len: 1}}
	return second(unix.ProcessVMWritev(w.pid, local, []unix.RemoteIovec{{Base: w.address, Len: 1}}, 0))
}

func writerFD(w writer) error {
	pidfd, err := unix.PidfdOpen(w.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, w.fd, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return second(unix.Write(fd, []byte("x")))
}

// tell asks whoever listens there to write.
func tell(address string) error {
	c, err := dial("unix", address)
	if err != nil {
		return err
	}
	defer c.Close()
	return second(c.Write([]byte("x")))
}
