//go:build unix && !linux

package process

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = "on this system commands outlive a worker that is killed or stopped, also its lease, " +
	"and daemons that leave a command's process group survive it"

// terminals says whether commands can have one.
const terminals = false

func startDir(dir *os.File) string { return dir.Name() }

// tree is the process group of a command, which leads a session of its own.
type tree struct {
	cmd   *exec.Cmd
	asked chan struct{} // has room for one: the command was asked to end
}

func newTree(cmd *exec.Cmd, _ *member, _ bool) *tree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &tree{cmd: cmd, asked: make(chan struct{}, 1)}
}

func (t *tree) start(sandbox.Limits, func() time.Time) error { return t.cmd.Start() }

// await blocks until the command has ended, and, if it was asked to, its group.
func (t *tree) await() {
	_ = t.cmd.Wait() // ProcessState tells
	for len(t.asked) > 0 && t.kill(0) == nil {
		<-time.After(20 * time.Millisecond)
	}
}

// signal asks the processes to end, or kills them.
func (t *tree) signal(kill bool) {
	if kill {
		_ = t.kill(syscall.SIGKILL) // there may be none
		return
	}
	select {
	case t.asked <- struct{}{}:
	default:
	}
	_ = t.kill(syscall.SIGTERM) // as above
}

// finish kills what is left after the end of the command itself.
func (t *tree) finish() error { return t.sweep() }

func (t *tree) sweep() error {
	t.signal(true)
	return nil
}

func (t *tree) kill(sig syscall.Signal) error { return syscall.Kill(-t.cmd.Process.Pid, sig) }

// describe puts how the command ended under its limits, and what it used, into result.
func (t *tree) describe(result *sandbox.Result, limits sandbox.Limits) {
	state := t.cmd.ProcessState
	if state == nil {
		return
	}
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

// maxRSSBytes converts what the system reports: kilobytes, but for Apple.
func maxRSSBytes(n int64) int64 {
	if runtime.GOOS == "darwin" || runtime.GOOS == "ios" {
		return n
	}
	return n << 10
}
