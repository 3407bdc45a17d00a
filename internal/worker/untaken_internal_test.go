package worker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/sandbox/process"
	"github.com/toolfleet/toolfleet/pkg/sandbox/snapshot"
)

// What a caller can do something about has a code of its own.
func TestUntaken_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for cause, words := range map[error]string{
		syscall.ENOSPC: "has no room", syscall.EDQUOT: "has no room",
		workspace.ErrMissing: "cannot be restored", snapshot.ErrCorrupt: "cannot be restored",
		snapshot.ErrUnsafe: "cannot be restored", snapshot.ErrLimit: "cannot be restored",
		workspace.ErrAway: "cannot be restored", workspace.ErrFull: "cannot be restored",
	} {
		fault, is := errors.AsType[*protocol.Error](untaken("sandbox/s", fmt.Errorf("restore: %w", cause)))
		require.True(t, is, cause)
		require.Equal(t, protocol.CodeWorkspaceUnavailable, fault.Code)
		require.Contains(t, fault.Message, words)
	}
}

// What was taken back together with what another call could not keep is not kept as if it were
// there.
func TestUndo_TellsTheCallsBesideIt(t *testing.T) {
	t.Parallel()
	f := natsiotest.New(t, natsio.Topology{})
	store, err := workspace.Open(t.Context(), f.NC, f.Name)
	require.NoError(t, err)
	o := Options{Data: t.TempDir(), Driver: process.New(nil), Durability: DurabilityCheckpoint, Workspace: func(string) (string, bool) { return "", false }}
	s, err := newSandboxes(o, nil)
	require.NoError(t, err)
	t.Cleanup(s.closeAll)
	s.workspaces = store
	w := &Worker{options: o, sandboxes: s}
	const l = protocol.Lane("sandbox/one")
	places, err := f.JS.KeyValue(t.Context(), f.Name.PlacesBucket())
	require.NoError(t, err)
	s.places = places
	_, err = s.get(t.Context(), l, 1, time.Now)
	require.NoError(t, err)
	write := func(name string) string {
		path := filepath.Join(s.workspace(l), name)
		require.NoError(t, os.WriteFile(path, []byte(name), 0o600))
		return path
	}
	a, b := write("a"), write("b")
	c := s.checkpointsOf(l)
	result := func(call protocol.CallID) *protocol.Result {
		return &protocol.Result{CallID: call, SessionID: "one", Status: protocol.StatusOK, Value: protocol.NoopResult{}}
	}
	before := s.undos(l)
	fault, is := errors.AsType[*protocol.Error](w.undo(t.Context(), l, c, workspace.ErrFull))
	require.True(t, is)
	require.Equal(t, protocol.CodeWorkspaceUnavailable, fault.Code)
	require.NoFileExists(t, a)
	require.NoFileExists(t, b)
	require.ErrorIs(t, c.commit(t.Context(), []string{"workspace/b"}, before, result("beside")), errUndone)
	_, err = s.get(t.Context(), l, 1, time.Now)
	require.NoError(t, err)
	write("b")
	require.NoError(t, c.commit(t.Context(), []string{"workspace/b"}, s.undos(l), result("later")))
}
