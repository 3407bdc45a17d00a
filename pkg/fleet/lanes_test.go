package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/fleettest"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A lane is seen, paused, and its calls are cancelled.
func TestLanes_SeeAndChange(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	workers, err := client.Workers(t.Context(), "", 0)
	require.NoError(t, err)
	require.Nil(t, workers)

	runs := make(chan struct{})
	wait := worker.Handle("wait", func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
		runs <- struct{}{}
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	mustStart(t, client, worker.Options{Driver: "none", Name: "seen", Handlers: []worker.Handler{wait}})
	table, err := tools.NewTable(tools.NewRemote[struct{}]("wait", "Wait.", tools.Remote{Kind: "wait", Resources: []tools.Resource{{Key: "account/a"}}}))
	require.NoError(t, err)
	results := make(chan protocol.Status, 2)
	call := func(id protocol.CallID) {
		result, _ := client.Call(t.Context(), fleet.Call{Table: table, Tool: "wait", Session: "s", ID: id})
		results <- result.Status
	}
	go call("first")
	<-runs
	go call("second")

	lanes := client.Lanes("")
	require.Eventually(t, func() bool {
		list, err := lanes.List(t.Context(), 0)
		return err == nil && len(list.Lanes) == 1 && list.Lanes[0].Waiting == 1 && list.Lanes[0].Running[0].CallID == "first"
	}, time.Minute, time.Millisecond)
	eventually := func(so func() (bool, error)) { // a holder that is very busy may not answer in time
		t.Helper()
		require.Eventually(t, func() bool {
			ok, err := so()
			return ok && err == nil
		}, time.Minute, time.Millisecond)
	}
	eventually(func() (bool, error) { return lanes.Pause(t.Context(), "account/a") })
	eventually(func() (bool, error) {
		killed, err := lanes.CancelRunning(t.Context(), "account/a")
		return len(killed) == 1, err
	})
	require.Equal(t, protocol.StatusCancelled, <-results)
	_, err = lanes.CancelRunning(t.Context(), "account/a")
	require.ErrorIs(t, err, fleet.ErrNotFound)
	shown, err := lanes.Show(t.Context(), "account/a", 0)
	require.NoError(t, err)
	require.Equal(t, "paused", shown.State)
	require.Len(t, shown.Calls, 1)
	require.Equal(t, protocol.CallID("second"), shown.Calls[0].CallID)
	require.ErrorIs(t, lanes.Cancel(t.Context(), "account/a", "third"), fleet.ErrNotFound)
	require.NoError(t, lanes.Cancel(t.Context(), "account/a", "second"))
	require.Equal(t, protocol.StatusCancelled, <-results)
	paused, err := lanes.Resume(t.Context(), "account/a")
	require.NoError(t, err)
	require.True(t, paused)

	eventually(func() (bool, error) {
		workers, err = client.Workers(t.Context(), "", 100*time.Millisecond)
		return len(workers) == 1, err
	})
	require.Contains(t, workers[0].WorkerID, "seen-")
	require.Equal(t, []protocol.Kind{"wait"}, workers[0].Kinds)
	unmet, err := lanes.Unmet(t.Context())
	require.NoError(t, err)
	require.Empty(t, unmet)
}

// What cannot be is an error before anything is sent.
func TestLanes_RefuseWhatCannotBe(t *testing.T) {
	t.Parallel()
	client := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, client.Close()) }()
	_, err := client.Lanes("").Wake(t.Context(), "account/none")
	require.ErrorIs(t, err, fleet.ErrNotFound)
	_, err = client.Lanes("").Show(t.Context(), "account/a/b", 0)
	require.ErrorContains(t, err, "lane account/a/b: must be the first two segments of a resource key: account/a")
	_, err = client.Lanes("No Pool").List(t.Context(), 0)
	require.ErrorIs(t, err, protocol.ErrInvalidName)
	_, err = client.Workers(t.Context(), "No Pool", 0)
	require.ErrorIs(t, err, protocol.ErrInvalidName)
	_, err = client.Workers(t.Context(), "", -1)
	require.ErrorContains(t, err, "wait -1ns: must not be negative")
	require.ErrorIs(t, client.Lanes("").Cancel(t.Context(), "account/a", "no/call"), protocol.ErrInvalidName)

	_, err = fleet.Connect(t.Context(), fleet.Options{Existing: true})
	require.ErrorContains(t, err, "existing: needs a URL")
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	_, err = fleet.Connect(t.Context(), fleet.Options{URL: server.ClientURL(), Existing: true})
	require.ErrorIs(t, err, fleet.ErrNoFleet)
}

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
