package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const oneLane = protocol.Lane("sandbox/one")

// oneSandbox is a worker's open sandbox whose workspace is kept with a fleet.
type oneSandbox struct {
	*testing.T
	*sandboxes
	*checkpoints
}

func openOne(t *testing.T) *oneSandbox {
	t.Helper()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	places, err := f.JS.KeyValue(t.Context(), wire.PlacesBucket(f.Name))
	require.NoError(t, err)
	s, err := newSandboxes(Options{
		Data: t.TempDir(), Driver: process.New(nil), Durability: DurabilityCheckpoint, Workspace: func(string) (string, bool) { return "", false },
	}, places)
	require.NoError(t, err)
	t.Cleanup(s.closeAll)
	s.workspaces = store
	one := &oneSandbox{T: t, sandboxes: s}
	one.open()
	one.checkpoints = s.checkpointsOf(oneLane)
	return one
}

func (o *oneSandbox) open() {
	o.Helper()
	_, err := o.get(o.Context(), oneLane, 1, time.Now)
	require.NoError(o, err)
}

// write writes a file, and returns where it is, and its path in the sandbox's directory.
func (o *oneSandbox) write(name string) (file, key string) {
	o.Helper()
	file = filepath.Join(o.workspace(oneLane), name)
	require.NoError(o, os.WriteFile(file, []byte(name), 0o600))
	return file, path.Join(workspaceDir, name)
}

func resultOf(call protocol.CallID) *protocol.Result {
	return &protocol.Result{CallID: call, SessionID: "one", Status: protocol.StatusOK, Value: protocol.NoopResult{}}
}

// What was taken back together with what another call could not keep is not kept as if it were
// there.
func TestUndo_TellsTheCallsBesideIt(t *testing.T) {
	t.Parallel()
	o := openOne(t)
	w := &Worker{options: o.options, sandboxes: o.sandboxes}
	a, _ := o.write("a")
	b, key := o.write("b")
	before := o.sandboxes.undos(oneLane)
	fault, is := errors.AsType[*protocol.Error](w.undo(t.Context(), oneLane, o.checkpoints, workspace.ErrFull))
	require.True(t, is)
	require.Equal(t, protocol.CodeWorkspaceUnavailable, fault.Code)
	require.NoFileExists(t, a)
	require.NoFileExists(t, b)
	require.ErrorIs(t, o.commit(t.Context(), []string{key}, before, resultOf("beside")), errUndone)
	o.open()
	o.write("b")
	require.NoError(t, o.commit(t.Context(), []string{key}, o.sandboxes.undos(oneLane), resultOf("later")))
}

// Calls that end while others are committed share the next checkpoint.
func TestCommit_IsShared(t *testing.T) {
	t.Parallel()
	const calls = 20
	o := openOne(t)
	o.saving.Lock() // a commit takes its time
	var ended sync.WaitGroup
	end := func(n int) {
		_, key := o.write(fmt.Sprint(n))
		ended.Go(func() {
			if err := o.commit(t.Context(), []string{key}, 0, resultOf(protocol.CallID(fmt.Sprint("c", n)))); err != nil {
				t.Error(err)
			}
		})
	}
	waits := func(n int) func() bool {
		return func() bool {
			o.checkpoints.mu.Lock()
			defer o.checkpoints.mu.Unlock()
			return o.checkpoints.busy && len(o.queue) == n
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
		require.Contains(t, tree, path.Join(workspaceDir, fmt.Sprint(n)))
	}
}

// Law: a call that is killed because its lane is given up commits nothing, however late the worker
// is told of that: its end is not the call's.
func TestTenure_EndsWithItsLaneAtOnce(t *testing.T) {
	t.Parallel()
	run := &lane.Run{LeaseEnd: func() time.Time { return time.Now().Add(time.Hour) }}
	for _, cause := range []error{lane.ErrDraining, lane.ErrLost} {
		for range 1000 {
			ctx, end := context.WithCancelCause(t.Context())
			held, stop := watchLease(ctx, run)
			end(cause)
			held.look()
			require.ErrorIs(t, context.Cause(held.ctx), cause)
			stop()
		}
	}
	ctx, end := context.WithCancelCause(t.Context())
	held, stop := watchLease(ctx, run)
	defer stop()
	end(lane.ErrCancelled)
	held.look()
	require.NoError(t, held.ctx.Err(), "a call that is cancelled keeps what it has changed")
}
