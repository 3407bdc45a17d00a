//go:build linux

package probes

import (
	"fmt"
	"runtime/debug"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/test/escapetest/internal/canary"
)

// attempt runs a probe so that a signal of the kernel is its answer. Those of a system call filter
// and of an unknown instruction end the process, as they would without the handlers of Go.
func attempt(try probe, h canary.Host) canary.Verdict {
	for _, sig := range []syscall.Signal{unix.SIGSYS, unix.SIGILL, unix.SIGTRAP} {
		defaultAction(sig)
	}
	return attemptFault(try, h)
}

// attemptFault runs a probe so that SIGSEGV or SIGBUS is its answer: kernels without 32-bit entry
// send one for the instruction int 0x80. A nil pointer is an error of the probe, and panics.
func attemptFault(try probe, h canary.Host) (v canary.Verdict) {
	debug.SetPanicOnFault(true)
	defer func() {
		switch fault := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }: // which the error of a nil pointer does not have
			v = canary.Verdict{Outcome: canary.Refused, Detail: fmt.Sprintf("fault at address %#x", fault.Addr())}
		default:
			panic(fault)
		}
	}()
	return try(h)
}

// defaultAction has a signal end the process. os/signal keeps the handler of Go, which prints
// stacks and exits with code 2.
func defaultAction(sig syscall.Signal) {
	const setSize = 8
	var action [4]uintptr // handler, flags, restorer and mask: SIG_DFL is 0
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, setSize, 0, 0)
}
