package environment

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// newLocal has a session "origin" of one turn, with a sub-agent "agent".
func newLocal(t *testing.T) LocalSessions {
	t.Helper()
	l := LocalSessions{filepath.Join(t.TempDir(), "sessions"), "tf", slog.New(slog.DiscardHandler)}
	d, err := l.Create(t.Context(), "origin")
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	at := time.Unix(1, 0).UTC()
	for _, id := range []protocol.SessionID{"agent", "origin"} {
		started := loop.Event{Type: loop.EventSessionStarted, Time: at}
		if id == "agent" {
			started.Parent = &loop.Parent{SessionID: "origin"}
		}
		_, err = d.fleet.Journal.Append(t.Context(), id, 0, started, loop.Event{Type: loop.EventTurnStarted, Time: at, Turn: 1},
			loop.Event{Type: loop.EventTurnEnded, Time: at, Turn: 1, Status: string(loop.OutcomeAnswered)})
		require.NoError(t, err)
	}
	return l
}

// fork forks "origin".
func fork(t *testing.T, l LocalSessions, to protocol.SessionID) {
	t.Helper()
	d, err := l.Open(t.Context(), "origin")
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	turns, err := d.Fork(t.Context(), "origin", public.At{}, to, nil)
	require.NoError(t, err)
	require.Equal(t, 1, turns)
}

func TestLocalSessions_ForksAndSubAgentsShareADirectory(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	fork(t, l, "fork")
	ids, err := l.IDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.SessionID{"fork", "origin"}, ids, "the one that changed last first")
	agents, err := l.Agents(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.SessionID{"agent"}, agents)
	last, err := l.Last(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("fork"), last)
	list, leftOut, err := l.List(t.Context(), 2)
	require.NoError(t, err)
	require.Equal(t, 1, leftOut)
	require.Equal(t, protocol.SessionID("fork"), list[0].SessionID)
	require.Zero(t, list[0].DiskBytes, "it would count twice")
	for _, id := range []protocol.SessionID{"fork", "agent"} {
		info, err := l.Show(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, protocol.SessionID("origin"), info.Parent)
	}

	running, err := l.Open(t.Context(), "fork")
	require.NoError(t, err)
	_, err = l.Open(t.Context(), "fork")
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.ErrorContains(t, err, "which is that of session origin")
	_, err = l.Show(t.Context(), "agent")
	require.ErrorIs(t, err, public.ErrNotFound)
	require.ErrorContains(t, err, "a sub-agent of one that a process runs, such as origin")
	ids, err = l.IDs(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.SessionID{"origin", "fork"}, ids)
	list, _, err = l.List(t.Context(), 9)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, report.StateInUse, list[1].State)
	_, err = l.Remove(t.Context(), "fork", true)
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.NoError(t, running.Close())

	_, err = l.Remove(t.Context(), "origin", false)
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.ErrorContains(t, err, "its directory has its forks")
	removed, err := l.Remove(t.Context(), "fork", false)
	require.NoError(t, err)
	require.Equal(t, uint64(2), removed.Events)
	_, err = l.Show(t.Context(), "fork")
	require.ErrorIs(t, err, public.ErrNotFound)
	fork(t, l, "other")
	_, err = l.Remove(t.Context(), "origin", true)
	require.NoError(t, err)
	require.NoDirExists(t, filepath.Join(l.dir, "other"))
}

// The next turn of a fork does not work in the current directory.
func TestLocalSessions_AForkHasAWorkspaceOfItsOwn(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	l, err := Local("tf", slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	d, err := l.Create(t.Context(), "origin")
	require.NoError(t, err)
	require.NoError(t, d.Close())
	place := t.TempDir()
	require.NoError(t, rememberWorkspace(filepath.Join(l.dir, "origin"), "origin", place))
	require.NoError(t, os.WriteFile(filepath.Join(place, "file"), []byte("x"), 0o600))
	d, err = l.Open(t.Context(), "origin")
	require.NoError(t, err)
	warned := ""
	_, err = d.Fork(t.Context(), "origin", public.At{Turn: 1}, "fork", func(m string) { warned = m })
	require.ErrorContains(t, err, "turn 1: not there, or it has not ended")
	require.Empty(t, warned, "what a fork that is not made would get")
	require.NoDirExists(t, filepath.Join(l.dir, "origin", "sandboxes", "fork"))
	_, err = d.Fork(t.Context(), "origin", public.At{}, "fork", nil)
	require.NoError(t, err)
	content, err := d.Sessions("").ReadFile(t.Context(), "fork", "file", "")
	require.NoError(t, err)
	require.Equal(t, "x", string(content))
	require.NoError(t, d.Close())
	f := &FleetFlags{}
	dir, err := f.FindWorkspace("", "fork", func(string) {})
	require.NoError(t, err)
	require.Empty(t, dir)
	_, err = f.FindWorkspace(place, "fork", func(string) {})
	require.ErrorContains(t, err, "omit --workspace")
}

// What a killed process has left to run is not run by a worker that only changes files.
func TestLocalDirectory_WorkRunsNothingThatWaits(t *testing.T) {
	t.Parallel()
	l := newLocal(t)
	d, err := l.Open(t.Context(), "origin")
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	_, err = d.Submit(t.Context(), public.Call{Session: "origin", Payload: wire.WorkspaceRemove{}})
	require.NoError(t, err)
	require.NoError(t, session.Idle(t.Context(), d.fleet, protocol.DefaultPool), "it runs no program")
	_, err = d.Submit(t.Context(), public.Call{Session: "origin", ID: "c-1", Payload: protocol.CommandRun{Command: "true"}})
	require.NoError(t, err)
	err = d.Work(t.Context())
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.ErrorContains(t, err, "call c-1 of session origin has no result; continue that session")
	_, _, err = d.WorkAs(t.Context(), Options{})
	require.ErrorIs(t, err, public.ErrSessionBusy)
}
