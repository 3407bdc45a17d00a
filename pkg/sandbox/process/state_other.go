//go:build !unix

package process

import (
	"os"

	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// describe puts how a process ended, and what it used, into result.
func describe(result *sandbox.Result, state *os.ProcessState, _ sandbox.Limits) {
	result.ExitCode = state.ExitCode()
	result.CPU = state.UserTime() + state.SystemTime()
	if result.Reason == "" {
		result.Reason = sandbox.ReasonExited
	}
}

func probeArgv() []string { return []string{"cmd", "/c", "exit 7"} }
