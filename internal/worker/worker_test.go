package worker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/mcp/toolserver/toolservertest"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// secret is in the environment of the worker's process, and must be nowhere else.
const secret = "sk-not-for-sandboxes"

func TestMain(m *testing.M) {
	toolservertest.Main()
	natsiotest.Overlap()
	state, err := os.MkdirTemp("", "toolfleet-state-") // not the user's own
	if err = errors.Join(err, os.Setenv("XDG_STATE_HOME", state), os.Setenv("OPENAI_API_KEY", secret)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(state) // it is temporary
		os.Exit(code)
	}))
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// shortLease is that of tests in which a lease ends. A busy machine renews it in time.
const shortLease = 4 * time.Second

// rig is a fleet with a dispatcher; workers are added by the test.
type rig struct {
	*natsiotest.Fleet

	t          *testing.T
	dispatcher *calls.Dispatcher
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOf(t, natsiotest.New(t, natsio.Topology{}))
}

func rigOf(t *testing.T, f *natsiotest.Fleet) *rig {
	t.Helper()
	d, err := calls.New(t.Context(), f.NC, f.Name, &calls.Options{
		LookAfter: 100 * time.Millisecond, CancelWait: patience, Logger: f.Logger,
	})
	require.NoError(t, err)
	return &rig{Fleet: f, t: t, dispatcher: d}
}

// options are those of a worker with a data directory of its own, whose leases do not end while it
// is well, however busy the machine is.
func (r *rig) options() worker.Options {
	r.t.Helper()
	driver := process.New(nil)
	return worker.Options{
		Options:  lane.Options{Fleet: r.Name, AckWait: patience, Logger: r.Logger},
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}}, Data: r.t.TempDir(),
	}
}

// inPlace are the options of a worker whose sandboxes all use one directory in place.
func (r *rig) inPlace() (o worker.Options, dir string) {
	r.t.Helper()
	o, dir = r.options(), r.t.TempDir()
	o.Workspace = func(string) (string, bool) { return dir, true }
	return o, dir
}

// work runs a worker until the test ends, or until the returned function is called.
func (r *rig) work(o worker.Options) (w *worker.Worker, stop func()) {
	r.t.Helper()
	w, err := worker.New(r.t.Context(), r.Connect(), o)
	require.NoError(r.t, err)
	return w, r.run(w)
}

func (r *rig) run(w *worker.Worker) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	drain, abort := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, drain) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			limit := time.AfterFunc(patience, abort)
			cancel()
			if err := <-done; err != nil {
				r.t.Errorf("worker: %v", err)
			}
			limit.Stop()
			abort()
		})
	}
	r.t.Cleanup(stop)
	return stop
}

// newCall makes a call that has a whole sandbox to itself.
func newCall(session protocol.SessionID, payload protocol.Payload) protocol.Call {
	return protocol.Call{
		ID: wire.RandomCallID(), SessionID: session, Tool: "test", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(session)), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: payload,
	}
}

// do dispatches one call and returns its result.
func (r *rig) do(session protocol.SessionID, payload protocol.Payload) *protocol.Result {
	r.t.Helper()
	return r.dispatch(r.t.Context(), newCall(session, payload))
}

func (r *rig) dispatch(ctx context.Context, call protocol.Call) *protocol.Result {
	r.t.Helper()
	result, err := r.dispatcher.Call(ctx, &call)
	require.NoError(r.t, err)
	return result
}

// value is the typed value of a result, which may be beside an error.
func value[V protocol.Value](t *testing.T, r *protocol.Result) V {
	t.Helper()
	v, ok := r.Value.(V)
	require.True(t, ok, "value is %T, error %v", r.Value, r.Error)
	return v
}

func requireOK(t *testing.T, r *protocol.Result) {
	t.Helper()
	require.Nil(t, r.Error)
	require.Equal(t, protocol.StatusOK, r.Status)
}

func requireFault(t *testing.T, r *protocol.Result, status protocol.Status, code protocol.Code) {
	t.Helper()
	require.NotNil(t, r.Error, "status %s, value %v", r.Status, r.Value)
	require.Equal(t, code, r.Error.Code, r.Error.Message)
	require.Equal(t, status, r.Status, r.Error.Message)
}

// workspaceOf is where a worker keeps the workspace of a sandbox.
func workspaceOf(data string, session protocol.SessionID) string {
	return filepath.Join(data, "sandboxes", string(session), "workspace")
}

// awaitFile waits until a file has content.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	var content []byte
	require.Eventually(t, func() bool {
		var err error
		content, err = os.ReadFile(path)
		return err == nil && len(content) > 0
	}, patience, time.Millisecond, path)
	return string(content)
}

// all dispatches calls from a goroutine other than the test's.
func (r *rig) all(calls []protocol.Call) map[protocol.CallID]*protocol.Result {
	results := map[protocol.CallID]*protocol.Result{}
	err := r.dispatcher.Dispatch(r.t.Context(), calls, func(u loop.Update) {
		if u.State == loop.StateDone {
			results[u.CallID] = u.Result
		}
	})
	if err != nil {
		r.t.Errorf("dispatch: %v", err)
	}
	return results
}

// storedResult is what the fleet knows of a call's result; nil when there is none.
func (r *rig) storedResult(t *testing.T, call protocol.Call) (*protocol.Result, error) {
	t.Helper()
	p, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	return p.Result(t.Context(), call.SessionID, call.ID)
}

// TestMetrics_TellWhatWasDone counts calls that ran, one way or the other, and one that was not
// run.
func TestMetrics_TellWhatWasDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	m := telemetrytest.NewMeter(t)
	o := r.options()
	o.Meter, o.Slots, o.Linger, o.Alone = m, 3, patience, true
	_, stop := r.work(o)
	session := protocol.NewSessionID()
	requireOK(t, r.do(session, protocol.CommandRun{Command: "true"}))
	requireOK(t, r.do(session, protocol.CommandRun{Command: "exit 3"}))
	requireFault(t, r.do(session, protocol.CommandRun{Command: "sleep 60", Limits: protocol.Limits{Wall: 1}}), protocol.StatusTimeout, protocol.CodeRunTimeout)
	requireFault(t, r.do(session, protocol.FilesRead{Path: "missing"}), protocol.StatusFailed, protocol.CodeNotFound)
	refused := newCall(session, wire.Noop{})
	refused.MinLevel = isolation.LevelFull.String()
	requireFault(t, r.dispatch(t.Context(), refused), protocol.StatusRejected, codes.SandboxLevel)

	const test, none = "gen_ai.tool.name=test", "toolfleet.sandbox.driver=process,toolfleet.sandbox.level=none"
	const pool = "toolfleet.pool=default"
	require.Equal(t, map[string]int64{pool: 3}, m.Read(t, telemetry.MetricSlotLimit))
	require.Equal(t, map[string]int64{pool: 1}, m.Read(t, telemetry.MetricLaneHeld), "it lingers")
	require.Equal(t, map[string]int64{none: 1}, m.Read(t, telemetry.MetricSandboxCount))

	stop() // what was counted just behind the last result is there now
	require.Equal(t, map[string]int64{
		test + "," + pool + ",toolfleet.status=ok":                                     2,
		"error.type=run_timeout," + test + "," + pool + ",toolfleet.status=timeout":    1,
		"error.type=not_found," + test + "," + pool + ",toolfleet.status=failed":       1,
		"error.type=sandbox_level," + test + "," + pool + ",toolfleet.status=rejected": 1,
	}, m.Read(t, telemetry.MetricCallEnded))
	require.Equal(t, map[string]int64{
		test + "," + pool: 2, "error.type=run_timeout," + test + "," + pool: 1, "error.type=not_found," + test + "," + pool: 1,
		"error.type=sandbox_level," + test + "," + pool: 1,
	}, m.Read(t, genaiconv.MetricTool))
	require.Equal(t, map[string]int64{pool: 5}, m.Read(t, telemetry.MetricQueueTime))
	require.Equal(t, map[string]int64{pool: 5}, m.Read(t, telemetry.MetricLaneTime))
	require.Equal(t, map[string]int64{none: 1}, m.Read(t, telemetry.MetricSandboxOpening), "the one in which the worker looked for languages is none of a lane")
	require.Equal(t, map[string]int64{
		"toolfleet.reason=exited," + none: 2, "toolfleet.reason=timeout," + none: 1,
	}, m.Read(t, telemetry.MetricCommandEnded))
	require.Empty(t, m.Read(t, telemetry.MetricCallRepeated))
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricLeaseLost), "it begins before there is one")
	require.Equal(t, map[string]int64{none: 0}, m.Read(t, telemetry.MetricSandboxCount))
	require.Empty(t, m.Read(t, telemetry.MetricSlotLimit), "a worker that has ended tells nothing")
}
