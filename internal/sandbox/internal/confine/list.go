//go:build linux

package confine

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// List is a list of system calls, to be made one after the other later on, by a process in which
// nothing but system calls works. The zero value is empty and ready for use, by one goroutine, and
// once.
//
//	var list confine.List
//	list.Step("new root")
//	config := list.Do(unix.SYS_FSOPEN, "tmpfs", 0)
//	list.Do(unix.SYS_FSCONFIG, config, unix.FSCONFIG_CMD_CREATE, 0, 0, 0)
//	root := list.Do(unix.SYS_FSMOUNT, config, 0, 0)
//	...
//	pid, err := list.Fork(flags, socket)
//
// The copy of a Go program that clone(2) makes has one thread, and the runtime of Go does not work
// in it: nothing may be allocated, no function called that may need more stack. So the system calls
// of a new process before it executes a program are listed first, with all their memory, and the
// copy makes the calls of the list. That spares it one start of a program, which takes longer than
// all of the calls.
//
// The parent does not wait for the calls. [List.Fork] reports a failed call through a socket.
type List struct {
	calls []call
	keep  []any  // what arguments point to
	step  string // of the next calls
	mask  *uint64
	group *int // to fork into; nil is that of this process
}

// Result stands for what a call of the same list returns.
type Result int

// call is a system call. It has no pointers that are written after the fork.
type call struct {
	number  uintptr
	args    [6]uintptr
	results uint8         // a bit for each argument that is the number of a call, whose result is meant
	pass    syscall.Errno // an error that is none
	load    *int32        // has the argument number loaded, when the call is made; nil when none is meant
	loaded  uint8
	store   *int32 // where the result is wanted, too
	result  uintptr
	step    string
	text    uintptr // of step
}

// Error is a call that has failed.
type Error struct {
	Step  string
	Errno syscall.Errno
}

// Error implements the error interface.
func (e *Error) Error() string { return e.Step + ": " + e.Errno.Error() }

// Unwrap returns the error number.
func (e *Error) Unwrap() error { return e.Errno }

// Step names what the next calls do, for the message of a failed call.
func (l *List) Step(name string) { l.step = name }

// Do adds a call. An argument is an int, uint32, uint64 or uintptr; a string without zero bytes
// (one is appended); bytes; an [unsafe.Pointer]; the [Result] of an earlier call; or, at most once,
// an *int32: the value that an earlier call has written there. Do not change the memory that
// arguments point to.
func (l *List) Do(number uintptr, args ...any) Result {
	c := call{number: number, step: l.step, text: uintptr(unsafe.Pointer(unsafe.StringData(l.step)))}
	for i, arg := range args {
		switch arg := arg.(type) {
		case int:
			c.args[i] = uintptr(arg)
		case uint32:
			c.args[i] = uintptr(arg)
		case uint64:
			c.args[i] = uintptr(arg)
		case uintptr:
			c.args[i] = arg
		case string:
			text := append([]byte(arg), 0)
			c.args[i] = l.pointer(text, unsafe.Pointer(&text[0]))
		case []byte:
			c.args[i] = l.pointer(arg, unsafe.Pointer(unsafe.SliceData(arg)))
		case unsafe.Pointer:
			c.args[i] = l.pointer(arg, arg)
		case *int32:
			c.load, c.loaded = arg, uint8(i)
		case Result:
			c.args[i], c.results = uintptr(arg), c.results|1<<i
		default:
			panic(fmt.Sprintf("confine: an argument of type %T", arg))
		}
	}
	l.calls = append(l.calls, c)
	return Result(len(l.calls) - 1)
}

// pointer keeps something for as long as the list, and returns where it is.
func (l *List) pointer(what any, at unsafe.Pointer) uintptr {
	l.keep = append(l.keep, what)
	return uintptr(at)
}

// Pass has the call that was added last count as made when it fails with that error.
func (l *List) Pass(errno syscall.Errno) { l.calls[len(l.calls)-1].pass = errno }

// Store has the result of the call that was added last written to a place, too.
func (l *List) Store(at *int32) { l.calls[len(l.calls)-1].store = at }

// RestoreSignals adds the call that has a forked process get signals again. They mean nothing good
// to it before it is a program of its own.
func (l *List) RestoreSignals() {
	if l.mask == nil {
		l.mask = new(uint64)
	}
	l.Do(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, unsafe.Pointer(l.mask), 0, unsafe.Sizeof(*l.mask))
}

// Make makes the calls in this thread. The error is an [*Error].
func (l *List) Make() error {
	i, errno := run(l.calls)
	runtime.KeepAlive(l)
	if errno != 0 {
		return &Error{Step: l.calls[i].step, Errno: errno}
	}
	return nil
}

// run makes calls until one fails, and returns which, and why. It must not need stack.
//
//go:nosplit
//go:norace
func run(calls []call) (int, syscall.Errno) {
	for i := range calls {
		c := &calls[i]
		for n := range c.args {
			if c.results&(1<<n) != 0 {
				c.args[n] = calls[c.args[n]].result
			}
		}
		if c.load != nil {
			c.args[c.loaded] = uintptr(*c.load) //nolint:gosec // a descriptor, or -1
		}
		result, _, errno := syscall.RawSyscall6(c.number, c.args[0], c.args[1], c.args[2], c.args[3], c.args[4], c.args[5])
		if errno != 0 && errno != c.pass {
			return i, errno
		}
		c.result = result
		if c.store != nil {
			*c.store = int32(result) //nolint:gosec // a descriptor
		}
	}
	return 0, 0
}

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
