package hooks

import (
	"context"
	"os/exec"
	"strings"
	"syscall"
)

// shell is a command line without a shell: its first word, which may be quoted, is the program. It
// ends with its time; what it has started may continue.
func shell(ctx context.Context, line string) *exec.Cmd {
	line = strings.TrimSpace(line)
	name, _, _ := strings.Cut(line, " ")
	if quoted, isQuoted := strings.CutPrefix(line, `"`); isQuoted {
		name, _, _ = strings.Cut(quoted, `"`)
	}
	program := exec.CommandContext(ctx, name) //nolint:gosec // G204: the user names it
	program.SysProcAttr = &syscall.SysProcAttr{CmdLine: line}
	return program
}
