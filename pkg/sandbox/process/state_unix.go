//go:build unix

package process

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

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

func probeArgv() []string { return []string{"/bin/sh", "-c", "exit 7"} }
