//go:build !linux

package process

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// terminals says whether commands can have one.
const terminals = false

func startDir(dir *os.File) string { return dir.Name() }

func newBounds(sandbox.Limits) (*supervisor.Bounds, error) { return &supervisor.Bounds{}, nil }

func limitKinds() isolation.LimitKinds {
	return isolation.LimitKinds{
		CPU: isolation.LimitNone, Memory: isolation.LimitNone, Processes: isolation.LimitNone,
		OpenFiles: isolation.LimitNone, FileSize: isolation.LimitNone, Disk: isolation.LimitNone,
	}
}

// tree is a command with its process group, where the system has groups.
type tree struct {
	cmd   *exec.Cmd
	asked chan struct{} // has room for one: the command was asked to end
}

func newTree(cmd *exec.Cmd, _ *supervisor.Bound) *tree {
	lead(cmd)
	return &tree{cmd: cmd, asked: make(chan struct{}, 1)}
}

func (t *tree) start(*Sandbox, sandbox.Cmd, sandbox.Limits) error { return t.cmd.Start() }

// await blocks until the command has ended, and, if it was asked to, its group.
func (t *tree) await() {
	_ = t.cmd.Wait() // ProcessState has the outcome
	for len(t.asked) > 0 && send(t.cmd.Process, 0) == nil {
		<-time.After(20 * time.Millisecond)
	}
}

// signal asks the processes to end, or kills them.
func (t *tree) signal(kill bool) {
	sig := syscall.SIGKILL
	if !kill {
		sig = syscall.SIGTERM
		select {
		case t.asked <- struct{}{}:
		default:
		}
	}
	_ = send(t.cmd.Process, sig) // there may be none
}

// finish kills the processes that outlive the command itself.
func (t *tree) finish() error { return t.sweep() }

func (t *tree) sweep() error {
	t.signal(true)
	return nil
}

// describe puts how the command ended under its limits, and what it used, into result.
func (t *tree) describe(result *sandbox.Result, limits sandbox.Limits) {
	if state := t.cmd.ProcessState; state != nil {
		result.CPU = state.UserTime() + state.SystemTime()
		describe(result, state, limits)
	}
}
