//go:build unix && !linux

package process

import (
	"os"
	"os/exec"
	"syscall"
)

const treeWarning = "on this system daemons that leave a command's process group survive it"

func prepareTrees() error { return nil }

func startDir(dir *os.File) string { return dir.Name() }

// tree is the process group of a command, which leads a session of its own.
type tree struct{ cmd *exec.Cmd }

func newTree(cmd *exec.Cmd, _ *member) *tree {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return &tree{cmd: cmd}
}

func (t *tree) start() error { return t.cmd.Start() }

// await blocks until the command itself has ended.
func (t *tree) await() { _ = t.cmd.Wait() } // ProcessState tells

// terminate asks the processes to end.
func (t *tree) terminate() { _ = t.signal(syscall.SIGTERM) } // there may be none

// alive reports whether any process is left.
func (t *tree) alive() bool { return t.signal(0) == nil }

// kill kills the processes.
func (t *tree) kill() { _ = t.signal(syscall.SIGKILL) } // there may be none

// finish kills what is left after the end of the command itself.
func (t *tree) finish() error { return t.sweep() }

func (t *tree) sweep() error {
	t.kill()
	return nil
}

func (t *tree) signal(sig syscall.Signal) error { return syscall.Kill(-t.cmd.Process.Pid, sig) }
