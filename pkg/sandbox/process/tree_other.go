//go:build !unix

package process

import (
	"os"
	"os/exec"
	"time"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = "on this system commands outlive a worker that is killed or stopped, also its lease, " +
	"and a command's background processes survive it"

// terminals says whether commands can have one.
const terminals = false

func startDir(dir *os.File) string { return dir.Name() }

// tree is a command; what it starts is not known on this system.
type tree struct{ cmd *exec.Cmd }

func newTree(cmd *exec.Cmd, _ *member, _ bool) *tree { return &tree{cmd: cmd} }

func (t *tree) start(sandbox.Limits, func() time.Time) error { return t.cmd.Start() }

// await blocks until the command itself has ended.
func (t *tree) await() { _ = t.cmd.Wait() } // ProcessState tells

// signal kills: there is no way to ask.
func (t *tree) signal(bool) { _ = t.cmd.Process.Kill() } // it may have ended

func (t *tree) finish() error { return nil }

func (t *tree) sweep() error { return nil }

// describe puts how the command ended, and what it used, into result.
func (t *tree) describe(result *sandbox.Result, _ sandbox.Limits) {
	state := t.cmd.ProcessState
	if state == nil {
		return
	}
	result.ExitCode = state.ExitCode()
	result.CPU = state.UserTime() + state.SystemTime()
	if result.Reason == "" {
		result.Reason = sandbox.ReasonExited
	}
}

func probeArgv() []string { return []string{"cmd", "/c", "exit 7"} }
