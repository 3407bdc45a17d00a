//go:build !linux

package process

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// terminals says whether commands can have one.
const terminals = false

func startDir(dir *os.File) string { return dir.Name() }

// group would be the control group of the commands of a sandbox, which this system does not have.
type group struct{}

// member would be a command in a group.
type member struct{}

func newGroup(sandbox.Limits) (*group, error) { return &group{}, nil }

// Used reports that there is no group.
func (*group) Used() bool { return false }

// Close does nothing.
func (*group) Close() error { return nil }

// Enter returns a command without bounds.
func (*group) Enter(sandbox.Limits) (*member, error) { return &member{}, nil }

// Leave does nothing.
func (*member) Leave() {}

// Watched reports that nothing bounds the command's memory.
func (*member) Watched() bool { return true }

// Looks returns no times to look at what was killed.
func (*member) Looks() (<-chan time.Time, func()) { return nil, func() {} }

// Killed reports that nothing was killed for its memory.
func (*member) Killed() (killed, mine bool) { return false, false }

// OutOfMemory does nothing.
func (*member) OutOfMemory(*sandbox.Result) {}

// Kinds returns kinds.
func (*member) Kinds(kinds isolation.LimitKinds) isolation.LimitKinds { return kinds }

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

func newTree(cmd *exec.Cmd, _ *member, _ bool) *tree {
	lead(cmd)
	return &tree{cmd: cmd, asked: make(chan struct{}, 1)}
}

func (t *tree) start(sandbox.Limits, func() time.Time) error { return t.cmd.Start() }

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

// finish kills what is left after the end of the command itself.
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
