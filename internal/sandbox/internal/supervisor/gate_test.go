package supervisor_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/internal/supervisor"
	"github.com/toolfleet/toolfleet/pkg/sandbox"
)

// TestGate_CloseDuringReset: the operations that run are stopped once, those that wait are refused,
// and the close waits for the reset.
func TestGate_CloseDuringReset(t *testing.T) {
	t.Parallel()
	gate := supervisor.NewGate("s", slog.New(slog.DiscardHandler))
	stop, err := gate.Enter(t.Context(), supervisor.Start{})
	require.NoError(t, err)
	resetting, proceed, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	done := make(chan error, 1)
	go func() {
		done <- gate.Reset(t.Context(), func() error {
			close(resetting)
			<-proceed
			return nil
		})
	}()
	<-stop
	gate.Leave()
	<-resetting
	late := make(chan error, 1)
	go func() {
		_, err := gate.Enter(t.Context(), supervisor.Start{})
		late <- err
	}()
	released := false
	go func() { closed <- gate.Close(func() error { released = true; return nil }) }()
	require.Eventually(t, func() bool {
		var is bool
		gate.Locked(func(closed, _ bool) { is = closed })
		return is
	}, time.Minute, time.Millisecond)
	close(proceed)
	require.NoError(t, <-done)
	require.NoError(t, <-closed)
	require.True(t, released)
	require.ErrorIs(t, <-late, sandbox.ErrClosed)
	require.ErrorIs(t, gate.Reset(t.Context(), func() error { return nil }), sandbox.ErrClosed)
}

// TestGate_RestartsWhatDoesNotServe: with no other change at the same time, and the operation
// enters after that.
func TestGate_RestartsWhatDoesNotServe(t *testing.T) {
	t.Parallel()
	gate := supervisor.NewGate("s", slog.New(slog.DiscardHandler))
	serves, starts := false, 0
	start := supervisor.Start{
		Serves:  func(idle bool) bool { return serves || !idle },
		Restart: func(context.Context) error { serves, starts = true, starts+1; return nil },
	}
	for range 2 {
		_, err := gate.Enter(t.Context(), start)
		require.NoError(t, err)
	}
	require.Equal(t, 1, starts)
	serves = false // an operation that runs is not interrupted
	_, err := gate.Enter(t.Context(), start)
	require.NoError(t, err)
	require.Equal(t, 1, starts)
	for range 3 {
		gate.Leave()
	}
	_, err = gate.Enter(t.Context(), start)
	require.NoError(t, err)
	require.Equal(t, 2, starts)
}
