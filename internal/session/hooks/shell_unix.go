//go:build unix

package hooks

import (
	"context"
	"os/exec"
	"syscall"
)

// shell is a command line, as the first process of a group, which ends with its time.
func shell(ctx context.Context, line string) *exec.Cmd {
	program := exec.CommandContext(ctx, "sh", "-c", line)
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	program.Cancel = func() error { return syscall.Kill(-program.Process.Pid, syscall.SIGKILL) }
	return program
}
