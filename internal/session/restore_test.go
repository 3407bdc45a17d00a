package session

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A session does not go back while it works, and says so.
func TestRestore_IsRefusedWhileATurnIsOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rigOf(t, worker.Options{Settings: sandboxes.Settings{Workspace: func(string) (string, bool) { return dir, true }}})
	journaled(t, r.Fleet, "open", time.Now(), loop.OutcomeAnswered, "")
	_, err := Restore(t.Context(), r.Fleet, "open", "", "c-1")
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "turn 2 is open")
	require.ErrorContains(t, err, "session cancel")
	require.ErrorIs(t, Revert(t.Context(), r.Fleet, "open", "", nil), ErrBusy)
	require.ErrorIs(t, Resolve(t.Context(), r.Fleet, "open", "", "c-1", true, "ada"), ErrBusy)

	journaled(t, r.Fleet, "ended", time.Now(), loop.OutcomeAnswered)
	for _, both := range [][2]protocol.SessionID{{"open", "ended"}, {"ended", "open"}} {
		_, err = Merge(t.Context(), r.Fleet, both[0], both[1], "")
		require.ErrorIs(t, err, ErrBusy)
	}
	_, err = Restore(t.Context(), r.Fleet, "ended", "", "c-1")
	require.ErrorContains(t, err, "is used in place: it has no checkpoints to go back to")
	require.Equal(t, protocol.CodeWorkspaceUnavailable, codeOf(err))
}

func codeOf(err error) protocol.Code {
	fault, _ := errors.AsType[*protocol.Error](err)
	return fault.Code
}
