//go:build unix && !linux

package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/start"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = "on this system commands outlive a worker that is killed or stopped, also its lease, " +
	"and daemons that leave a command's process group survive it"

// lead has a command lead a session of its own.
func lead(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} }

func send(leader *os.Process, sig syscall.Signal) error { return syscall.Kill(-leader.Pid, sig) }

func describe(result *sandbox.Result, state *os.ProcessState, limits sandbox.Limits) {
	if usage, ok := state.SysUsage().(*syscall.Rusage); ok {
		result.MaxRSS = int64(usage.Maxrss) //nolint:unconvert // 32 bits on some systems
		if runtime.GOOS != "darwin" && runtime.GOOS != "ios" {
			result.MaxRSS <<= 10 // others count kilobytes
		}
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok {
		start.Describe(result, status, "", limits)
	}
}
