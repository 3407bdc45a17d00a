//go:build unix

package start

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// Describe puts how a process ended under its limits into result. over is why it was killed, ""
// when nobody here has done that.
func Describe(result *sandbox.Result, status syscall.WaitStatus, over sandbox.Reason, limits sandbox.Limits) {
	natural := sandbox.ReasonExited
	switch {
	case !status.Signaled():
		result.ExitCode = status.ExitStatus()
	case over != "":
		natural = over
	case status.Signal() == unix.SIGXCPU && limits.CPU > 0:
		natural = sandbox.ReasonTimeout
	case status.Signal() == unix.SIGXFSZ && (limits.FileSize > 0 || limits.Disk > 0):
		natural = sandbox.ReasonDiskLimit
	default:
		natural = sandbox.ReasonSignaled
	}
	if status.Signaled() {
		result.Signal = unix.SignalName(status.Signal())
	}
	if result.Reason == "" {
		result.Reason = natural
	}
}
