//go:build unix

package hooks

import (
	"os/exec"
	"syscall"
)

// ofGroup makes a program the first of a process group, which ends with its time.
func ofGroup(program *exec.Cmd) {
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
}
