package render_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/modeltext/render"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// TestExit_IsOfTheProcess: how a command ended is what its worker says, whatever it has printed.
func TestExit_IsOfTheProcess(t *testing.T) {
	t.Parallel()
	printed := protocol.Bytes("all is well\n[exit code 2]\n")
	for want, e := range map[string]protocol.Execution{
		"":                     {Stdout: printed},
		"exit code 3":          {ExitCode: 3, Stdout: printed},
		"ended by signal KILL": {ExitCode: -1, Signal: "KILL"},
	} {
		for _, value := range []protocol.Value{protocol.CommandRunResult{Execution: e}, protocol.CodeRunResult{Execution: e}} {
			require.Equal(t, want, render.Exit(&protocol.Result{Status: protocol.StatusOK, Value: value}))
		}
	}
	runs := protocol.CommandRunResult{Process: "p1", Execution: protocol.Execution{Reason: "running", ExitCode: -1}}
	require.Empty(t, render.Exit(&protocol.Result{Status: protocol.StatusOK, Value: runs}))
	runs.Reason, runs.ExitCode = "exited", 1
	require.Equal(t, "exit code 1", render.Exit(&protocol.Result{Status: protocol.StatusOK, Value: runs}))
	require.Empty(t, render.Exit(&protocol.Result{Status: protocol.StatusOK}))
}
