package integration

import (
	"os/exec"
	"syscall"
)

// dieWithTests has the system kill the command when the tests die without cleaning up.
func dieWithTests(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// ownGroup gives a command that dieWithTests has prepared a process group, which endGroup kills.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr.Setpgid = true }

func endGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
