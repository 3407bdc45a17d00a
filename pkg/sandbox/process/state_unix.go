//go:build unix

package process

import (
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// describe puts how a process ended under its limits, and what it used, into result.
func describe(result *sandbox.Result, state *os.ProcessState, limits sandbox.Limits) {
	result.ExitCode = state.ExitCode()
	result.CPU = state.UserTime() + state.SystemTime()
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		result.MaxRSS = maxRSSBytes(int64(usage.Maxrss)) //nolint:unconvert // 32 bits on some systems
	}
	natural := sandbox.ReasonExited
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		result.Signal = unix.SignalName(status.Signal())
		natural = signalReason(status.Signal(), limits)
	}
	if result.Reason == "" {
		result.Reason = natural
	}
}

// signalReason is why a process was ended by a signal that nobody here has sent.
func signalReason(sig syscall.Signal, limits sandbox.Limits) sandbox.Reason {
	switch {
	case sig == unix.SIGXCPU && limits.CPU > 0:
		return sandbox.ReasonTimeout
	case sig == unix.SIGXFSZ && limits.FileSize > 0:
		return sandbox.ReasonDiskLimit
	default:
		return sandbox.ReasonSignaled
	}
}

// maxRSSBytes converts what the system reports: kilobytes, but for Apple.
func maxRSSBytes(n int64) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return n
	}
	return n << 10
}

func probeArgv() []string { return []string{"/bin/sh", "-c", "exit 7"} }
