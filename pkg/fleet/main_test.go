package fleet_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
	"github.com/toolfleet/toolfleet/pkg/worker"
)

func TestMain(m *testing.M) {
	if os.Getenv(stepWorkerVariable) != "" {
		beStepWorker()
		return
	}
	toolservertest.Main()
	natsiotest.Overlap()
	goleak.VerifyTestMain(m)
}

func TestConnect_KeepsWhatItsDirectoryHas(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	table := table(t)
	call := func(tool, arguments string) fleet.Result {
		f := mustConnect(t, fleet.Options{Data: data})
		mustStart(t, f, worker.Options{Driver: "process"})
		outcome := mustCall(t, f, fleet.Call{Table: table, Session: "s", Tool: tool, Arguments: arguments})
		require.NoError(t, f.Close())
		return outcome
	}
	require.Equal(t, protocol.StatusOK, call("write", `{"path":"a","content":"kept"}`).Status)
	require.Contains(t, call("read", `{"path":"a"}`).Text, "kept")
	refused := call("read", `{"path":"../a"}`)
	require.Equal(t, protocol.StatusRejected, refused.Status)
	require.Equal(t, codes.PathEscape, refused.Error.Code)
	require.Contains(t, refused.Text, "[rejected: path_escape]")
	require.Empty(t, refused.WorkerID)
	require.DirExists(t, data)
}

// TestStartWorker_AnotherWorkerContinuesASession: in a fleet elsewhere a workspace does not depend
// on the data directory of the worker that had it.
func TestStartWorker_AnotherWorkerContinuesASession(t *testing.T) {
	t.Parallel()
	server := natsiotest.Serve(t, natsiotest.Alone(t, "", ""))
	call := func(tool, arguments string) fleet.Result {
		f := mustConnect(t, fleet.Options{URL: server.ClientURL()})
		mustStart(t, f, worker.Options{Driver: "process"})
		outcome := mustCall(t, f, fleet.Call{Table: table(t), Session: "s", Tool: tool, Arguments: arguments})
		require.NoError(t, f.Close())
		return outcome
	}
	require.Equal(t, protocol.StatusOK, call("write", `{"path":"a","content":"stored"}`).Status)
	require.Contains(t, call("read", `{"path":"a"}`).Text, "stored")
}

func TestClose_RemovesADirectoryOfItsOwn(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	f := mustConnect(t, fleet.Options{})
	entries, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.NotEmpty(t, entries)
	require.NoError(t, f.Close())
	entries, err = os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFleet_RefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	_, err := fleet.Connect(t.Context(), fleet.Options{Fleet: "No Fleet"})
	require.ErrorIs(t, err, protocol.ErrInvalidName)
	_, err = fleet.Connect(t.Context(), fleet.Options{Fleet: "No Fleet", Storage: fleet.Storage{
		Replicas: 2, KeepAge: -1, KeepBytes: -2, ResultAge: time.Minute, ResultBytes: 3,
	}})
	for _, part := range []string{
		"No Fleet", "replicas 2", "keep age -1ns", "keep bytes -2", "result age 1m0s: must be 0 or 10m to 8760h", "result bytes 3: must be 0 or at least",
	} {
		require.ErrorContains(t, err, part)
	}
	_, err = fleet.OpenModel("nobody:x")
	require.ErrorContains(t, err, "openai:NAME")
	f := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, f.Close()) }()
	_, err = f.StartWorker(t.Context(), worker.Options{Driver: "jail"})
	require.Error(t, err)
	_, err = f.StartWorker(t.Context(), worker.Options{
		Slots: -1, Pool: "No Pool", Name: "no name", Drain: -1, Handlers: []worker.Handler{{}}, Server: worker.Server{URL: "nats://elsewhere"},
	})
	require.ErrorIs(t, err, wire.ErrInvalidKind)
	for _, part := range []string{"slots -1", "No Pool", `name "no name"`, "drain -1ns", "server: must be zero"} {
		require.ErrorContains(t, err, part)
	}
	_, err = f.StartWorker(t.Context(), worker.Options{Pool: protocol.SessionPool})
	require.ErrorContains(t, err, "coordinators")
	_, err = f.Call(t.Context(), fleet.Call{Table: table(t), Session: "no/session", Tool: "read", Arguments: "{}"})
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}

func mustConnect(t *testing.T, o fleet.Options) *fleet.Client {
	t.Helper()
	client, err := fleet.Connect(t.Context(), o)
	require.NoError(t, err)
	return client
}

func mustStart(t *testing.T, client *fleet.Client, o worker.Options) *fleet.Worker {
	t.Helper()
	w, err := client.StartWorker(t.Context(), o)
	require.NoError(t, err)
	return w
}

func mustCall(t *testing.T, client *fleet.Client, call fleet.Call) fleet.Result {
	t.Helper()
	result, err := client.Call(t.Context(), call)
	require.NoError(t, err)
	return result
}

func mustWait(t *testing.T, f *fleet.Future) fleet.Result {
	t.Helper()
	result, err := f.Wait(t.Context())
	require.NoError(t, err)
	return result
}

func table(t *testing.T) *tools.Table {
	t.Helper()
	made, err := tools.NewTable(toolset.Core()...)
	require.NoError(t, err)
	return made
}

func TestConnect_EndsWithItsContext(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := fleet.Connect(ctx, fleet.Options{})
	require.ErrorIs(t, err, context.Canceled)
	entries, err := os.ReadDir(os.TempDir())
	require.NoError(t, err)
	require.Empty(t, entries)
}

// Workers may be started side by side, outlive the contexts that they were started with, and
// end with the fleet, which may be closed twice.
func TestStartWorker_Several(t *testing.T) {
	t.Parallel()
	f := mustConnect(t, fleet.Options{})
	starting, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	for range 3 {
		group.Go(func() error {
			_, err := f.StartWorker(starting, worker.Options{Driver: "process"})
			return err
		})
	}
	require.NoError(t, group.Wait())
	cancel()
	outcome := mustCall(t, f, fleet.Call{Table: table(t), Session: "s", Tool: "bash", Arguments: `{"command":"echo here"}`})
	require.Contains(t, outcome.Text, "here")
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
}

// A worker that is drained lets its call end, and takes no other; calls of a killed one do not end.
func TestWorker_Drains(t *testing.T) {
	t.Parallel()
	f := mustConnect(t, fleet.Options{})
	defer func() { require.NoError(t, f.Close()) }()
	began, release := make(chan struct{}, 2), make(chan struct{})
	wait := worker.Handle("wait", func(ctx context.Context, _ *worker.Call, _ struct{}) (string, error) {
		began <- struct{}{}
		select {
		case <-release:
			return "ended", nil
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	})
	start := func() *fleet.Worker {
		w := mustStart(t, f, worker.Options{Driver: "none", Handlers: []worker.Handler{wait}})
		return w
	}
	table, err := tools.NewTable(tools.NewRemote[struct{}]("wait", "Wait.", tools.Remote{Kind: "wait", Resources: []tools.Resource{}, Delivery: protocol.AtMostOnce}))
	require.NoError(t, err)
	outcomes := make(chan fleet.Result, 1)
	call := func() {
		outcome, _ := f.Call(t.Context(), fleet.Call{Table: table, Tool: "wait"})
		outcomes <- outcome
	}

	first := start()
	go call()
	<-began
	drained := make(chan error, 1)
	go func() { drained <- first.Drain(t.Context()) }()
	require.NoError(t, first.Err())
	close(release)
	require.NoError(t, <-drained)
	require.Equal(t, "ended", (<-outcomes).Text)
	<-first.Done()
	require.NoError(t, first.Err())

	release = make(chan struct{})
	second := start()
	go call()
	<-began
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(context.DeadlineExceeded)
	require.ErrorIs(t, second.Drain(ended), context.DeadlineExceeded)
	<-second.Done()
	third := start() // which reports what became of the call
	require.Equal(t, protocol.StatusOutcomeUnknown, (<-outcomes).Status)

	require.NoError(t, f.Close()) // drains the worker
	for range 20 {
		require.NoError(t, third.Drain(ended), "it has ended")
	}
	require.NoError(t, third.Err())
}

func TestSessions_RemoveTheWorkspaceToo(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	f := mustConnect(t, fleet.Options{Data: data})
	defer func() { require.NoError(t, f.Close()) }()
	mustStart(t, f, worker.Options{Driver: "process"})
	table := table(t)
	outcome := mustCall(t, f, fleet.Call{Table: table, Session: "s", Tool: "write", Arguments: `{"path":"a","content":"x"}`})
	require.Nil(t, outcome.Error)
	require.DirExists(t, filepath.Join(data, "sandboxes", "s"))
	removed, err := f.Sessions("").Remove(t.Context(), "s", false)
	require.NoError(t, err)
	require.True(t, removed.Workspace)
	require.NoDirExists(t, filepath.Join(data, "sandboxes", "s"))
	removed, err = f.Sessions("").Remove(t.Context(), "s", false)
	require.NoError(t, err)
	require.Zero(t, removed)
	_, err = f.Sessions("").Remove(t.Context(), "no/id", false)
	require.ErrorIs(t, err, protocol.ErrInvalidName)
}
