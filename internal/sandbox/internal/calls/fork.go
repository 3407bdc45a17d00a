//go:build linux

package calls

import (
	"encoding/binary"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// report is a forked process's report of a failed call.
type report struct {
	fd    uintptr
	parts [3]part // the head, the error number, the step
	errno [4]byte
}

// part is a struct iovec, without a pointer that could not be written in a forked process.
type part struct{ base, length uintptr }

// ForkInto has Fork make the process in a control group, the descriptor of its directory.
func (l *List) ForkInto(group int) { l.group = &group }

// cloneArguments are those of clone3(2).
type cloneArguments struct {
	flags, pidFD, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
}

// arguments are the numbers of the call that forks, and its arguments.
func (l *List) arguments(flags uintptr) (number, first, second uintptr, keep *cloneArguments) {
	if l.group == nil {
		return unix.SYS_CLONE, flags | uintptr(unix.SIGCHLD), 0, nil
	}
	keep = &cloneArguments{flags: uint64(flags) | unix.CLONE_INTO_CGROUP, cgroup: uint64(*l.group)} //nolint:gosec // a descriptor
	if flags&unix.CLONE_PARENT == 0 {
		keep.exitSignal = uint64(unix.SIGCHLD) // a child of another sends what its parent would, and the kernel wants nothing said then
	}
	return unix.SYS_CLONE3, uintptr(unsafe.Pointer(keep)), unsafe.Sizeof(*keep), keep
}

// Fork makes a process by clone(2) that makes the calls, of which the last one executes a program,
// and returns its process id. flags must not share memory with it. When a call fails, the process
// writes one message to the descriptor fd, and ends: head, and what [Failed] reads.
func (l *List) Fork(flags uintptr, fd int, head []byte) (int, error) {
	r := &report{fd: uintptr(fd)}
	l.keep = append(l.keep, r, head) // on the heap, where nothing moves
	r.parts[0] = part{uintptr(unsafe.Pointer(unsafe.SliceData(head))), uintptr(len(head))}
	r.parts[1] = part{uintptr(unsafe.Pointer(&r.errno)), unsafe.Sizeof(r.errno)}
	if l.mask == nil {
		l.mask = new(uint64)
	}
	number, first, second, arguments := l.arguments(flags)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	none := ^uint64(0)
	_, _, errno := syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(&none)), uintptr(unsafe.Pointer(l.mask)), unsafe.Sizeof(none), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	pid, errno := fork(number, first, second, l.calls, r)
	runtime.KeepAlive(arguments)
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(l.mask)), 0, unsafe.Sizeof(none), 0, 0)
	runtime.KeepAlive(l)
	runtime.KeepAlive(head)
	if errno != 0 {
		return 0, errno
	}
	return int(pid), nil
}

// fork is the part of Fork in which there are two processes.
//
//go:nosplit
//go:norace
func fork(number, first, second uintptr, calls []call, r *report) (uintptr, syscall.Errno) {
	pid, _, errno := syscall.RawSyscall6(number, first, second, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		return pid, errno
	}
	at, errno := run(calls)
	for i := range r.errno {
		r.errno[i] = byte(errno >> (8 * (len(r.errno) - 1 - i))) //nolint:gosec // a byte of it
	}
	r.parts[2] = part{calls[at].text, uintptr(len(calls[at].step))}
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITEV, r.fd, uintptr(unsafe.Pointer(&r.parts)), uintptr(len(r.parts)))
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}

// Failed decodes the report of a forked process, after the head. ok is false when the message is no
// such report.
func Failed(message []byte) (failed *Error, ok bool) {
	const size = len(report{}.errno)
	if len(message) < size {
		return nil, false
	}
	return &Error{Step: string(message[size:]), Errno: syscall.Errno(binary.BigEndian.Uint32(message))}, true
}
