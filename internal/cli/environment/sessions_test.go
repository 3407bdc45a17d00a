package environment

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/fleet"
	public "github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestLocalSessions_AreDirectories(t *testing.T) {
	t.Parallel()
	l := LocalSessions{filepath.Join(t.TempDir(), "sessions"), "tf", slog.New(slog.DiscardHandler)}
	list, leftOut, err := l.List(t.Context(), 10)
	require.NoError(t, err)
	require.Empty(t, list)
	require.Zero(t, leftOut)
	for i, id := range []protocol.SessionID{"old", "open", "new"} {
		f, err := fleet.Connect(t.Context(), fleet.Options{Name: l.fleet, Data: filepath.Join(l.dir, string(id)), Logger: l.logger})
		require.NoError(t, err)
		outcome := loop.OutcomeAnswered
		if id == "open" {
			outcome = ""
		}
		at := time.Unix(int64(i+1), 0).UTC()
		events := []loop.Event{{Type: loop.EventSessionStarted, Time: at}, {Type: loop.EventTurnStarted, Time: at, Turn: 1}}
		if outcome != "" {
			events = append(events, loop.Event{Type: loop.EventTurnEnded, Time: at, Turn: 1, Status: string(outcome)})
		}
		_, err = f.Journal.Append(t.Context(), id, 0, events...)
		require.NoError(t, err)
		f.Close()
	}
	require.NoError(t, os.Mkdir(filepath.Join(l.dir, "empty"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(l.dir, "no session"), 0o700))
	workspace := filepath.Join(l.dir, "new", "sandboxes", "new", "workspace")
	require.NoError(t, os.MkdirAll(workspace, 0o700))
	outside := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(outside, []byte("x"), 0o600))
	require.NoError(t, os.Symlink(filepath.Dir(outside), filepath.Join(workspace, "link")))

	list, leftOut, err = l.List(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, leftOut)
	states := map[protocol.SessionID]string{}
	for _, info := range list {
		states[info.SessionID] = info.State
	}
	require.Equal(t, map[protocol.SessionID]string{"old": "answered", "open": report.StateOpen, "new": "answered", "empty": ""}, states)
	require.Equal(t, protocol.SessionID("empty"), list[0].SessionID, "whose directory was made last")
	require.WithinDuration(t, time.Now(), list[0].UpdatedAt, time.Minute)
	require.Equal(t, protocol.SessionID("new"), list[1].SessionID)
	require.Positive(t, list[1].DiskBytes)
	_, err = l.Show(t.Context(), "empty")
	require.ErrorIs(t, err, public.ErrNotFound)
	made, err := os.ReadDir(filepath.Join(l.dir, "empty"))
	require.NoError(t, err)
	require.Empty(t, made, "looking changes nothing")
	_, leftOut, err = l.List(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, 3, leftOut)

	last, err := l.Last(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("new"), last, "nothing came of the empty one")
	running, err := l.Open(t.Context(), "new")
	require.NoError(t, err)
	last, err = l.Last(t.Context())
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("open"), last, "a process uses the new one")
	require.NoError(t, running.Close())
	running, err = l.Open(t.Context(), "old")
	require.NoError(t, err)
	info, err := l.Show(t.Context(), "old")
	require.NoError(t, err)
	require.Equal(t, report.StateInUse, info.State)
	_, err = l.Remove(t.Context(), "old", true)
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.NoError(t, running.Close())

	_, err = l.Remove(t.Context(), "open", false)
	require.ErrorIs(t, err, public.ErrSessionBusy)
	require.DirExists(t, filepath.Join(l.dir, "open"))
	removed, err := l.Remove(t.Context(), "open", true)
	require.NoError(t, err)
	require.Equal(t, report.Removed{Events: 1}, removed)
	removed, err = l.Remove(t.Context(), "new", false)
	require.NoError(t, err)
	require.Equal(t, report.Removed{Events: 1, Workspace: true}, removed)
	require.FileExists(t, outside)
	_, err = l.Remove(t.Context(), "new", false)
	require.ErrorIs(t, err, public.ErrNotFound)
	_, err = l.Show(t.Context(), "new")
	require.ErrorIs(t, err, public.ErrNotFound)
	removed, err = l.Remove(t.Context(), "empty", false)
	require.NoError(t, err)
	require.Equal(t, report.Removed{}, removed)
	require.NoDirExists(t, filepath.Join(l.dir, "empty"))
}
