package fleet_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

// A lane is seen, paused, and its calls are cancelled.
func TestLanes_SeeAndChange(t *testing.T) {
	t.Parallel()
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
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
	_, err = client.StartWorker(t.Context(), worker.Options{Driver: "none", Name: "seen", Handlers: []worker.Handler{wait}})
	require.NoError(t, err)
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
	client, err := fleet.Connect(t.Context(), fleet.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, client.Close()) }()
	_, err = client.Lanes("").Wake(t.Context(), "account/none")
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
