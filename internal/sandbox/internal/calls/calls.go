//go:build linux

package calls

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// List is a list of system calls. The zero value is empty and ready for use, by one
// goroutine, and once.
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

// Step names what the next calls do, for who reads that one of them has failed.
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
			panic(fmt.Sprintf("calls: an argument of type %T", arg))
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
