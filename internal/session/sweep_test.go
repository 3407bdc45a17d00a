package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A workspace that only calls without a model used is listed with its name, its owner and its age,
// and removed as a session is.
func TestReader_ListsWorkspacesWithoutAJournal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	reader := r.reader(t)
	reader.Workspaces = true
	for _, id := range []protocol.SessionID{"older", "newer"} {
		require.Nil(t, r.call(t.Context(), t, id, protocol.CommandRun{Command: "echo x >f"}).Error)
	}
	r.lived(t, "journaled")
	list, leftOut, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, leftOut)
	require.Len(t, list, 3)
	require.Equal(t, protocol.SessionID("journaled"), list[0].SessionID)
	for i, id := range []protocol.SessionID{"newer", "older"} {
		got := list[i+1]
		require.WithinDuration(t, time.Now(), got.UpdatedAt, time.Hour)
		got.UpdatedAt = time.Time{}
		require.Equal(t, report.Session{SessionID: id, State: report.StateWorkspaceOnly, Tenant: wire.DefaultTenant, Results: 1}, got)
	}
	list, leftOut, err = reader.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1, leftOut)
	require.Equal(t, protocol.SessionID("newer"), list[1].SessionID)
	info, err := reader.Show(t.Context(), "older")
	require.NoError(t, err)
	require.Equal(t, report.StateWorkspaceOnly, info.State)

	_, err = Remove(t.Context(), r.Fleet, "older", Options{})
	require.NoError(t, err)
	require.Empty(t, r.left(t, "older"))
	_, err = reader.Show(t.Context(), "older")
	require.ErrorIs(t, err, ErrNone)
}

// A sandbox that only clients used is removed once it is old, without a worker. What a model or a
// person worked in, and what is in use, stays.
func TestSweeper_RemovesWhatOnlyClientsUsed(t *testing.T) {
	t.Parallel()
	r := rigOf(t, worker.Options{Options: lane.Options{Linger: -1}})
	r.lived(t, "worked")
	before := r.left(t, "worked")
	made := func(id protocol.SessionID, command protocol.CommandRun) {
		require.Nil(t, r.call(t.Context(), t, id, command).Error)
	}
	made("client", protocol.CommandRun{Command: "head -c 300000 /dev/zero | tr '\\0' x | tee long"})
	require.NotNil(t, r.call(t.Context(), t, "client", protocol.FilesRead{Path: "long"}).Kept)
	made("held", protocol.CommandRun{Command: "sleep 1000", Background: true})
	made("agent", protocol.CommandRun{Command: "echo x >f"})
	made("monthly", protocol.CommandRun{Command: "echo x >f"})
	made("model", protocol.CommandRun{Command: "echo x >f"})
	journaled(t, r.Fleet, "model", time.Now(), loop.OutcomeAnswered)
	schedules, err := schedule.Open(t.Context(), r.JS, r.Name)
	require.NoError(t, err)
	_, err = schedules.Add(t.Context(), schedule.Schedule{Name: "monthly", Cron: "@monthly", KeepSession: true, Call: protocol.Call{
		ID: wire.RandomCallID(), IssuedAt: time.Now(), SessionID: "monthly", Pool: protocol.DefaultPool, Tool: "test", Payload: protocol.CommandRun{Command: "cat f"},
		Resources: []protocol.Use{{Key: protocol.SandboxKey("monthly"), Access: protocol.Exclusive}}, Delivery: protocol.Idempotent,
	}})
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), "agent", 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1, NoteFields: loop.NoteFields{Interface: "mcp"}}, loop.Event{Type: loop.EventTurnEnded, Turn: 1})
	require.NoError(t, err)
	store, err := workspace.Open(t.Context(), r.NC, r.Name, "")
	require.NoError(t, err)
	sweeper := Sweeper{Fleet: r.Fleet, Stores: map[*fleet.Fleet]*workspace.Store{r.Fleet: store}, Age: time.Hour}
	n, err := sweeper.Sweep(t.Context())
	require.NoError(t, err)
	require.Zero(t, n, "nothing is old")

	sweeper.Age = 0
	removed := 0
	require.Eventually(t, func() bool { // a worker holds a lane for a moment
		n, err := sweeper.Sweep(t.Context())
		removed += n
		return err == nil && removed == 2
	}, time.Minute, 50*time.Millisecond)
	reader := r.reader(t)
	reader.Workspaces = true
	list, _, err := reader.List(t.Context(), 10)
	require.NoError(t, err)
	var left []protocol.SessionID
	for _, s := range list {
		left = append(left, s.SessionID)
	}
	require.ElementsMatch(t, []protocol.SessionID{"worked", "held", "monthly", "model"}, left)
	require.ElementsMatch(t, before, r.left(t, "worked"))
	for _, left := range r.left(t, "client") {
		require.Regexp(t, `^tf\.result\.|^result/|/sandboxes/client$`, left, "results have an age of their own, and so have copies on a worker's disk")
	}

	require.NoError(t, r.Journal.CheckCall(t.Context(), "agent"), "a call may use the name again")
	made("client", protocol.CommandRun{Command: "test -z \"$(ls -A)\""}) // what uses it next begins with nothing
}
