package process

import (
	"errors"
	"os"
	"os/exec"
	"syscall"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

const treeWarning = "on this system commands outlive a worker that is killed or stopped, also its lease, " +
	"and a command's background processes survive it"

// lead does nothing: what a command starts is not known on this system.
func lead(*exec.Cmd) {}

// send kills: there is no way to ask.
func send(p *os.Process, sig syscall.Signal) error {
	if sig == 0 {
		return errors.ErrUnsupported
	}
	return p.Kill()
}

func describe(result *sandbox.Result, state *os.ProcessState, _ sandbox.Limits) {
	result.ExitCode = state.ExitCode()
	if result.Reason == "" {
		result.Reason = sandbox.ReasonExited
	}
}
