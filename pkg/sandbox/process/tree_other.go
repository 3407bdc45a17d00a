//go:build !unix

package process

import (
	"os"
	"os/exec"
)

const treeWarning = "on this system a command's background processes survive it"

func prepareTrees() error { return nil }

func startDir(dir *os.File) string { return dir.Name() }

// tree is a command; what it starts is not known on this system.
type tree struct{ cmd *exec.Cmd }

func newTree(cmd *exec.Cmd, _ *member) *tree { return &tree{cmd: cmd} }

func (t *tree) start() error { return t.cmd.Start() }

// await blocks until the command itself has ended.
func (t *tree) await() { _ = t.cmd.Wait() } // ProcessState tells

// terminate kills: there is no way to ask.
func (t *tree) terminate() { t.kill() }

func (t *tree) alive() bool { return false }

func (t *tree) kill() { _ = t.cmd.Process.Kill() } // it may have ended

func (t *tree) finish() error { return nil }

func (t *tree) sweep() error { return nil }
