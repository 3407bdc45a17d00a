package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const oneLane = protocol.Lane("sandbox/one")

// directory is one whose states are stored with a fleet.
type directory struct {
	*testing.T
	*Directory
}

func newDirectory(t *testing.T) directory {
	t.Helper()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name, "")
	require.NoError(t, err)
	d, err := Open(t.Context(), Claim{
		Store: store, Lane: oneLane, Path: t.TempDir(), Disk: "disk", Epoch: 1, Undos: new(atomic.Int64),
	})
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(d.path, WorkspaceDir), 0o700))
	return directory{t, d}
}

// write writes a file, and returns its path in the sandbox's directory.
func (d directory) write(name string) (key string) {
	d.Helper()
	key = path.Join(WorkspaceDir, name)
	require.NoError(d, os.WriteFile(filepath.Join(d.path, key), []byte(name), 0o600))
	return key
}

// lease is that of a run that begins now.
func (d directory) lease() *Lease {
	l, stop := Watch(d.Context(), &lane.Run{LeaseEnd: func() time.Time { return time.Now().Add(time.Hour) }}, d.undos.Load())
	d.Cleanup(stop)
	return l
}

func resultOf(call protocol.CallID) *protocol.Result {
	return &protocol.Result{CallID: call, SessionID: "one", Status: protocol.StatusOK, Value: wire.NoopResult{}}
}

// Changes that were undone with those of another call are not committed as if they were there.
func TestUndo_UndoesConcurrentCalls(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	d.write("a")
	key, before := d.write("b"), d.lease()
	require.NoError(t, d.Undo(t.Context(), func() error { return nil }))
	require.NoFileExists(t, filepath.Join(d.path, WorkspaceDir, "a"))
	require.NoFileExists(t, filepath.Join(d.path, key))
	require.ErrorIs(t, d.Commit([]string{key}, before, resultOf("concurrent")), ErrUndone)
	require.NoError(t, os.MkdirAll(filepath.Join(d.path, WorkspaceDir), 0o700))
	d.write("b")
	require.NoError(t, d.Commit([]string{key}, d.lease(), resultOf("later")))
}

// A sandbox that cannot be closed leaves its directory, and undoes the calls all the same.
func TestUndo_WithoutClosing(t *testing.T) {
	t.Parallel()
	d := newDirectory(t)
	key, before := d.write("a"), d.lease()
	require.ErrorIs(t, d.Undo(t.Context(), func() error { return os.ErrDeadlineExceeded }), os.ErrDeadlineExceeded)
	require.FileExists(t, filepath.Join(d.path, key))
	require.ErrorIs(t, d.Commit([]string{key}, before, resultOf("c")), ErrUndone)
}

// Calls that end while others are committed share the next checkpoint.
func TestCommit_IsShared(t *testing.T) {
	t.Parallel()
	const calls = 20
	o := newDirectory(t)
	o.saving.Lock() // a commit takes its time
	var ended sync.WaitGroup
	end := func(n int) {
		key, l := o.write(fmt.Sprint(n)), o.lease()
		ended.Go(func() {
			if err := o.Commit([]string{key}, l, resultOf(protocol.CallID(fmt.Sprint("c", n)))); err != nil {
				t.Error(err)
			}
		})
	}
	waits := func(n int) func() bool {
		return func() bool {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.busy && len(o.queue) == n
		}
	}
	end(0)
	require.Eventually(t, waits(0), time.Minute, time.Millisecond)
	for n := range calls - 1 {
		end(n + 1)
	}
	require.Eventually(t, waits(calls-1), time.Minute, time.Millisecond)
	o.saving.Unlock()
	ended.Wait()
	history, err := o.store.History(t.Context(), wire.HashLane(oneLane))
	require.NoError(t, err)
	require.Len(t, history, 2)
	require.Equal(t, []protocol.CallID{"c0"}, history[0].Calls)
	require.Len(t, history[1].Calls, calls-1)
	tree, err := o.store.At(t.Context(), wire.HashLane(oneLane), "")
	require.NoError(t, err)
	for n := range calls {
		require.Contains(t, tree, path.Join(WorkspaceDir, fmt.Sprint(n)))
	}
}

// Law: a call that is killed because its lane is given up commits nothing, however late the worker
// learns of it: its end is not the call's.
func TestLease_EndsWithItsLaneAtOnce(t *testing.T) {
	t.Parallel()
	run := &lane.Run{LeaseEnd: func() time.Time { return time.Now().Add(time.Hour) }}
	for _, cause := range []error{lane.ErrDraining, lane.ErrLost} {
		for range 1000 {
			ctx, end := context.WithCancelCause(t.Context())
			held, stop := Watch(ctx, run, 0)
			end(cause)
			held.check()
			require.ErrorIs(t, context.Cause(held.ctx), cause)
			stop()
		}
	}
	ctx, end := context.WithCancelCause(t.Context())
	held, stop := Watch(ctx, run, 0)
	defer stop()
	end(lane.ErrCancelled)
	held.check()
	require.NoError(t, held.ctx.Err(), "a call that is cancelled keeps what it has changed")
}

// A call may be cancelled before it is watched.
func TestWatch_OfACallThatHasEnded(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lane.ErrCancelled)
	run := &lane.Run{LeaseEnd: func() time.Time { return time.Now().Add(time.Hour) }}
	for range 10_000 {
		l, stop := Watch(ctx, run, 0)
		require.True(t, l.Valid(), "its lane is still held")
		stop()
	}
}

// What a caller can do something about has a code of its own.
func TestRestoreError_NamesTheCause(t *testing.T) {
	t.Parallel()
	for cause, words := range map[error]string{
		syscall.ENOSPC: "has no room", syscall.EDQUOT: "has no room",
		workspace.ErrMissing: "cannot be restored", snapshot.ErrCorrupt: "cannot be restored",
		snapshot.ErrUnsafe: "cannot be restored", snapshot.ErrLimit: "cannot be restored",
		workspace.ErrAway: "cannot be restored", workspace.ErrFull: "cannot be restored",
	} {
		fault, is := errors.AsType[*protocol.Error](RestoreError("sandbox/s", fmt.Errorf("restore: %w", cause)))
		require.True(t, is, cause)
		require.Equal(t, protocol.CodeWorkspaceUnavailable, fault.Code)
		require.Contains(t, fault.Message, words)
	}
}
