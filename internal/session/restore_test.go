package session

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
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

// A turn that begins between the look at a session and what a person does to it refuses that: no
// call was sent, and no event is in its way. What was begun before is completed before the turn
// begins.
func TestRestore_AndATurnAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("old")}).Error)
	begin := r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "b", Content: []byte("old")})
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("new")}).Error)
	_, err := r.Journal.Append(t.Context(), "s", 0, conversation()[:7]...)
	require.NoError(t, err)
	look, err := idle(t.Context(), r.Fleet, r.Journal, "s", "", judge.Change)
	require.NoError(t, err)
	last, err := r.Journal.Append(t.Context(), "s", look.history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2})
	require.NoError(t, err)
	_, err = look.change(t.Context(), wire.RandomCallID(), loop.Event{}, wire.WorkspaceRestore{At: begin.CallID})
	require.ErrorIs(t, err, ErrBusy)
	effect := Effect{Effect: report.Effect{CallID: "c", Tool: "x", Revert: "y"}, session: "s"}
	effect.call = undoing(t, "log", "c", "one", "")[1].Effect.Revert
	require.ErrorIs(t, look.revert(t.Context(), &effect), ErrBusy)
	_, err = r.Journal.Append(t.Context(), "s", last, loop.Event{Type: loop.EventTurnEnded, Turn: 2, Status: "answered"})
	require.NoError(t, err, "nothing was added")

	files, err := OpenFiles(t.Context(), r.Fleet, "")
	require.NoError(t, err)
	content := func() string {
		content, err := files.Read(t.Context(), "s", "a", "")
		require.NoError(t, err)
		return string(content)
	}
	require.Equal(t, "new", content())
	look, err = idle(t.Context(), r.Fleet, &brittle{Journal: r.Journal, left: 2}, "s", "", judge.Change)
	require.NoError(t, err)
	_, err = look.change(t.Context(), wire.RandomCallID(), loop.Event{}, wire.WorkspaceRestore{At: begin.CallID})
	require.ErrorIs(t, err, errCrash)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(answers{}, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), "s", loop.Input{Text: "go on"})
	require.NoError(t, err)
	require.Equal(t, "old", content())
	history, err := r.Journal.Load(t.Context(), "s")
	require.NoError(t, err)
	at := func(kind loop.EventType, turn int) int {
		return slices.IndexFunc(history.Events, func(e loop.Event) bool { return e.Type == kind && e.Turn == turn })
	}
	require.Greater(t, at(loop.EventTurnStarted, 3), at(loop.EventChangeEnded, 2))
	require.Greater(t, at(loop.EventChangeEnded, 2), at(loop.EventChangeStarted, 2))
}

// TestRestore_ATurnThatIsStoppedEndsNoChange of a person, for which it waits.
func TestRestore_ATurnThatIsStoppedEndsNoChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rigOf(t, worker.Options{})
	begin := r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "a", Content: []byte("old")})
	require.Nil(t, begin.Error)
	last, err := r.Journal.Append(t.Context(), "s", 0, conversation()[:7]...)
	require.NoError(t, err)
	look, err := idle(t.Context(), r.Fleet, r.Journal, "s", "", judge.Change)
	require.NoError(t, err)
	call := look.callOf(wire.RandomCallID(), wire.WorkspaceRestore{At: begin.CallID})
	body, err := wire.EncodeCall(&call)
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), "s", last, loop.Event{
		Type: loop.EventChangeStarted, Turn: 1, CallFields: loop.CallFields{CallID: call.ID, Name: call.Tool}, NoteFields: loop.NoteFields{Call: body},
	})
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := r.dispatch(t.Context(), "s", protocol.CommandRun{Command: "cd " + dir + "; touch runs; until [ -e ends ]; do sleep 0.05; done"})
		ended <- err
	}()
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(dir, "runs")); return err == nil }, time.Minute, time.Millisecond)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(answers{}, r.Dispatcher, r.Journal, table, &loop.Options{ModelName: "m"})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		defer stop()
		for ctx.Err() == nil {
			if found, _, err := r.Dispatcher.Find(ctx, "", protocol.CallRef{SessionID: "s", ID: call.ID}); found != nil || err != nil {
				return // it waits in the lane
			}
		}
	}()
	_, err = runner.Run(ctx, "s", loop.Input{Text: "go on"})
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "ends"), nil, 0o600))
	require.NoError(t, <-ended)
	results, err := loop.CompleteChanges(t.Context(), r.Journal, r.Dispatcher, "s")
	require.NoError(t, err)
	require.Len(t, results, 1)
	require.Equal(t, protocol.StatusOK, results[0].Status, "%v", results[0].Error)
}

func codeOf(err error) protocol.Code {
	fault, _ := errors.AsType[*protocol.Error](err)
	return fault.Code
}
