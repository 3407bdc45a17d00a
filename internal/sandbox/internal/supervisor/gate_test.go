package supervisor_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

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

// TestEmpty_LeavesTheTwoDirectories: empty, accessible, the same ones, and nothing beside them.
func TestScratch_Empty_LeavesTheTwoDirectories(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	s, err := supervisor.OpenScratch(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	before, err := os.Stat(s.Home())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(s.Home(), strings.Repeat("d/", 200)), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(s.Temp(), "locked", "below"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(s.Temp(), "link")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "beside"), nil, 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "beside.d"), 0))
	require.NoError(t, os.Chmod(filepath.Join(s.Temp(), "locked"), 0))
	require.NoError(t, os.Chmod(s.Home(), 0o500))
	require.NoError(t, s.Empty())
	after, err := os.Stat(s.Home())
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after), "a sandbox may have it mounted")
	require.Equal(t, os.FileMode(0o700), after.Mode().Perm())
	entries, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, []string{s.Home(), s.Temp()}, entries)
	below, err := filepath.Glob(filepath.Join(dir, "*", "*"))
	require.NoError(t, err)
	require.Empty(t, below)
	require.FileExists(t, filepath.Join(outside, "kept"))
}

// TestEmpty_DirectoryThatIsALink is removed as such and made again.
func TestScratch_Empty_DirectoryThatIsALink(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	s, err := supervisor.OpenScratch(dir)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, os.Remove(s.Home()))
	require.NoError(t, os.Symlink(outside, s.Home()))
	require.NoError(t, s.Empty())
	require.FileExists(t, filepath.Join(outside, "kept"))
	info, err := os.Lstat(s.Home())
	require.NoError(t, err)
	require.True(t, info.IsDir())
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
