package drivers_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// A command of driver process ends with all that was started by it, and by nobody else: not with
// what another driver starts meanwhile, once for all of its sandboxes.
func TestOpen_DriversOfOneProcessLeaveEachOtherAlone(t *testing.T) { //nolint:paralleltest // it ends what other tests need, too
	ns, _, err := drivers.Open(t.Context(), "ns", nil)
	if err != nil {
		t.Skipf("NOT TESTED: driver ns does not work here: %v", err)
	}
	plain, _, err := drivers.Open(t.Context(), "process", nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var commands sync.WaitGroup
	defer commands.Wait()
	defer stop()
	for range 4 {
		box := open(t, plain)
		commands.Go(func() {
			for ctx.Err() == nil {
				_, _ = box.Exec(ctx, sandbox.Cmd{Argv: []string{"true"}}) // the last one is stopped
			}
		})
	}
	for range 8 {
		endLauncher(t)
		box := open(t, ns)
		for range 5 {
			result, err := box.Exec(t.Context(), sandbox.Cmd{Argv: []string{"sleep", "0.01"}})
			require.NoError(t, err)
			require.Equal(t, sandbox.ReasonExited, result.Reason)
		}
		require.NoError(t, box.Close())
	}
}

func open(t *testing.T, d isolation.Driver) sandbox.Sandbox {
	t.Helper()
	box, err := d.Open(t.Context(), isolation.Spec{Workspace: t.TempDir(), Scratch: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = box.Close() }) // it may be closed
	return box
}

// endLauncher has driver ns start its launcher again with the next sandbox.
func endLauncher(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile("/proc/" + entry.Name() + "/cmdline") // it may have ended
		status, _ := os.ReadFile("/proc/" + entry.Name() + "/status")
		if bytes.Equal(line, []byte("toolfleet-sandbox\x00launch\x00")) && bytes.Contains(status, []byte("\nPPid:\t"+strconv.Itoa(os.Getpid())+"\n")) {
			if err := syscall.Kill(pid, syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) { // it has ended since
				require.NoError(t, err)
			}
		}
	}
}
