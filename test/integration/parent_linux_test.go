package integration

import (
	"os/exec"
	"syscall"
)

// dieWithTests has the system kill the command when the tests die without cleaning up.
func dieWithTests(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
