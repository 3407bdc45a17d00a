package bench

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/drivers"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

func TestRun_CommandsRunInTheSandboxesOfTheirLanes(t *testing.T) {
	t.Parallel()
	opened, caps, err := drivers.Open(t.Context(), drivers.Auto, &drivers.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil && os.Getenv("TOOLFLEET_INTEGRATION") != "required" {
		t.Skipf("NOT TESTED: no driver isolates here: %v", err)
	}
	require.NoError(t, err)
	o := options(t)
	o.Lanes, o.Callers, o.Calls, o.Workers, o.Payload, o.Baseline = 3, 6, 60, 1, 0, 20*time.Millisecond
	o.Exec = Exec{Command: "echo called >>calls", Driver: opened, Caps: caps, Data: t.TempDir()}
	r, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Zero(t, r.Errors)
	require.Zero(t, r.Violations)
	require.Positive(t, r.CallsPerS)
	require.Positive(t, r.Exec.NoopPerS)
	require.Positive(t, r.Exec.PlainPerS)
	require.Positive(t, r.Exec.OpenMS)
	require.InEpsilon(t, r.CallsPerS/r.Exec.PlainPerS, r.RatioToPlain, 1e-9)
	workspaces, err := os.ReadDir(o.Exec.Data + "/sandboxes")
	require.NoError(t, err)
	lines := 0
	for _, workspace := range workspaces {
		calls, err := os.ReadFile(o.Exec.Data + "/sandboxes/" + workspace.Name() + "/workspace/calls")
		require.NoError(t, err)
		lines += len(calls) / len("called\n")
	}
	require.Len(t, workspaces, o.Lanes)
	require.Equal(t, o.Lanes+o.Calls, lines, "each lane's first call, and those that were measured")
}

func TestRun_CommandsDoNotTakeWorkAndPayload(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Exec.Command, o.Work, o.Payload = "true", time.Second, 0
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "--work, --slow-lane and --payload")
}

// slowSandbox runs a command until it is told to end it.
type slowSandbox struct {
	sandbox.Sandbox

	began, end chan struct{}
}

func (s slowSandbox) Exec(context.Context, sandbox.Cmd) (sandbox.Result, error) {
	s.began <- struct{}{}
	<-s.end
	return sandbox.Result{}, nil
}

// A check that cannot find two commands at once would be worth nothing.
func TestWatchedSandbox_CountsOverlap(t *testing.T) {
	t.Parallel()
	var overlaps atomic.Int64
	slow := slowSandbox{began: make(chan struct{}, 2), end: make(chan struct{})}
	s := watchedSandbox{Sandbox: slow, overlaps: &overlaps}
	done := make(chan error, 2)
	run := func() {
		_, err := s.Exec(t.Context(), sandbox.Cmd{})
		done <- err
	}
	go run()
	<-slow.began
	require.Zero(t, overlaps.Load())
	go run()
	<-slow.began
	close(slow.end)
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.EqualValues(t, 1, overlaps.Load())
}
