package fleet_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestLimits_OneOfEachSubject(t *testing.T) {
	t.Parallel()
	limits, ctx := fleettest.Start(t).Limits(), t.Context()
	list, err := limits.List(ctx)
	require.NoError(t, err)
	require.Empty(t, list)
	require.NoError(t, limits.Set(ctx, fleet.Limit{Lane: "account/*", Concurrent: 1}))
	require.NoError(t, limits.Set(ctx, fleet.Limit{Lane: "account/*", Rate: "60/min"}))
	require.NoError(t, limits.Set(ctx, fleet.Limit{Lane: "account/vip", Rate: "5/s", Burst: 3}))
	err = limits.Set(ctx, fleet.Limit{Lane: "account", Rate: "fast", Burst: -1})
	require.ErrorIs(t, err, fleet.ErrInvalid)
	require.ErrorContains(t, err, `rate "fast"`)
	require.ErrorContains(t, err, "burst -1: must be")
	list, err = limits.List(ctx)
	require.NoError(t, err)
	require.Equal(t, []fleet.Limit{
		{Lane: "account/vip", Rate: "5/s", Burst: 3, DefaultBurst: 1},
		{Lane: "account/*", Concurrent: 1, Rate: "60/min", DefaultBurst: 1},
	}, list)
	require.NoError(t, limits.Remove(ctx, list[0]))
	require.ErrorIs(t, limits.Remove(ctx, list[0]), fleet.ErrNotFound)
}

func TestClient_ListsPools(t *testing.T) {
	t.Parallel()
	pools, err := fleettest.Start(t).Pools(t.Context())
	require.NoError(t, err)
	require.Equal(t, []protocol.Pool{protocol.DefaultPool}, pools)
}

func TestTemplates_OfDirectories(t *testing.T) {
	t.Parallel()
	templates, ctx, dir := fleettest.Start(t).Templates(), t.Context(), t.TempDir()
	require.NoError(t, templates.Create(ctx, "base", dir, fleet.Copy{}))
	require.ErrorIs(t, templates.Create(ctx, "base", dir, fleet.Copy{}), fleet.ErrExists)
	require.ErrorIs(t, templates.Create(ctx, "No", dir, fleet.Copy{}), fleet.ErrInvalid)
	require.ErrorIs(t, templates.Create(ctx, "no", filepath.Join(dir, "missing"), fleet.Copy{}), fleet.ErrInvalid)
	require.ErrorIs(t, templates.CreateFromSession(ctx, "other", "none"), fleet.ErrNotFound)
	list, err := templates.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "base", list[0].Name)
	require.NoError(t, templates.Remove(ctx, "base"))
	require.ErrorIs(t, templates.Remove(ctx, "base"), fleet.ErrNotFound)
}

// TestTemplates_LeaveOutWhatCopiesDo: one rule says what of a directory gets to a fleet.
func TestTemplates_LeaveOutWhatCopiesDo(t *testing.T) {
	t.Parallel()
	templates, ctx, dir, told := fleettest.Start(t).Templates(), t.Context(), t.TempDir(), ""
	for _, name := range []string{".env", "id_rsa", "server.pem", "main.go", ".gitignore", "built"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("built\n"), 0o600))
	}
	require.NoError(t, templates.Create(ctx, "base", dir, fleet.Copy{Warn: func(text string) { told += text }}))
	require.NoError(t, templates.Create(ctx, "more", dir, fleet.Copy{IncludeIgnored: true}))
	list, err := templates.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, []int{2, 3}, []int{list[0].Files, list[1].Files})
	require.Contains(t, told, "not copied: .env, id_rsa, server.pem (secrets), built (.gitignore)")
}

func TestSchedules_ArePausedAndResumed(t *testing.T) {
	t.Parallel()
	schedules, ctx := fleettest.Start(t).Schedules(), t.Context()
	request, turn := fleet.Schedule{Name: "daily", Cron: "0  7 * * *", TimeZone: "Europe/Berlin"}, fleet.Turn{Prompt: "List the failed builds."}
	added, err := schedules.Add(ctx, request, turn)
	require.NoError(t, err)
	require.Equal(t, "0 7 * * *", added.Cron)
	require.Len(t, added.Next, 3)
	require.Equal(t, 7, added.Next[0].Hour())
	require.Equal(t, "List the failed builds.", added.Prompt)
	require.Empty(t, added.SessionID, "each time has one of its own")
	_, err = schedules.Add(ctx, request, turn)
	require.ErrorIs(t, err, fleet.ErrExists)
	request.Name, request.Cron = "other", "never"
	_, err = schedules.Add(ctx, request, turn)
	require.ErrorIs(t, err, fleet.ErrInvalid)
	request.Cron, turn.Session = "@every 1h", "kept"
	kept, err := schedules.Add(ctx, request, turn)
	require.NoError(t, err)
	require.Equal(t, protocol.SessionID("kept"), kept.SessionID)
	require.WithinDuration(t, time.Now().Add(time.Hour), kept.Next[0], time.Minute)

	paused, err := schedules.Pause(ctx, "daily")
	require.NoError(t, err)
	require.True(t, paused.Paused)
	require.Empty(t, paused.Next)
	resumed, err := schedules.Resume(ctx, "daily")
	require.NoError(t, err)
	require.Equal(t, added.Next, resumed.Next)
	list, err := schedules.List(ctx)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.NoError(t, schedules.Remove(ctx, "daily"))
	require.ErrorIs(t, schedules.Remove(ctx, "daily"), fleet.ErrNotFound)
}
