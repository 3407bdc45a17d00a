package session

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/model/scripted"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/session/journal"
	"github.com/toolfleet/toolfleet/internal/session/schedule"
	"github.com/toolfleet/toolfleet/internal/session/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fleet with a worker, and a session that has left everything that one can leave.
type rig struct {
	*fleet.Fleet

	data    string
	worker  *fleet.Worker
	connect func() *nats.Conn // another connection
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOf(t, worker.Options{})
}

func rigOf(t *testing.T, o worker.Options) *rig {
	t.Helper()
	data := t.TempDir()
	servers := natsiotest.New(t, natsio.Topology{})
	f := &fleet.Fleet{Name: servers.Name, NC: servers.Connect(), Logger: servers.Logger}
	require.NoError(t, f.Open(t.Context(), true))
	t.Cleanup(f.Close)
	driver := process.New(nil)
	o.Data, o.Driver, o.Caps, o.AckWait = data, driver, isolation.Caps{Driver: driver.Name()}, time.Minute // a busy machine ends no lease
	w, err := f.StartWorker(t.Context(), o)
	require.NoError(t, err)
	return &rig{Fleet: f, data: data, worker: w, connect: servers.Connect}
}

func mustRemover(t *testing.T, r *rig, id protocol.SessionID, o Options) *remover {
	t.Helper()
	removal, err := newRemover(t.Context(), r.Fleet, id, o)
	require.NoError(t, err)
	return removal
}

func mustOpenFiles(t *testing.T, r *rig, pool protocol.Pool) Files {
	t.Helper()
	files, err := OpenFiles(t.Context(), r.Fleet, pool)
	require.NoError(t, err)
	return files
}

func (r *rig) mustRemove(t *testing.T, id protocol.SessionID, o Options) report.Removed {
	t.Helper()
	removed, err := Remove(t.Context(), r.Fleet, id, o)
	require.NoError(t, err)
	return removed
}

func mustAppend(t *testing.T, j loop.Journal, id protocol.SessionID, last uint64, events ...loop.Event) uint64 {
	t.Helper()
	last, err := j.Append(t.Context(), id, last, events...)
	require.NoError(t, err)
	return last
}

func mustLoad(t *testing.T, j loop.Journal, id protocol.SessionID) loop.History {
	t.Helper()
	history, err := j.Load(t.Context(), id)
	require.NoError(t, err)
	return history
}

func (r *rig) call(ctx context.Context, t *testing.T, id protocol.SessionID, payload protocol.Payload) *protocol.Result {
	t.Helper()
	result, err := r.dispatch(ctx, id, payload)
	require.NoError(t, err)
	return result
}

func (r *rig) dispatch(ctx context.Context, id protocol.SessionID, payload protocol.Payload) (*protocol.Result, error) {
	call := protocol.Call{
		ID: wire.RandomCallID(), SessionID: id, Tool: "test", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey(string(id)), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: payload,
	}
	return r.Dispatcher.Call(ctx, &call)
}

// lived makes a session with a turn, files, a background process, and output that is kept apart.
func (r *rig) lived(t *testing.T, id protocol.SessionID) {
	t.Helper()
	history := mustLoad(t, r.Journal, id)
	_, err := r.Journal.Append(t.Context(), id, history.Last,
		loop.Event{Type: loop.EventTurnStarted, Turn: 1}, loop.Event{Type: loop.EventTurnEnded, Turn: 1})
	require.NoError(t, err)
	for _, command := range []protocol.CommandRun{
		{Command: "mkdir -p a/b; echo x > a/b/c; ln -s / root"},
		{Command: "head -c 300000 /dev/zero | tr '\\0' x | tee long"},
		{Command: "sleep 1000", Background: true},
	} {
		require.Nil(t, r.call(t.Context(), t, id, command).Error)
	}
	require.NotNil(t, r.call(t.Context(), t, id, protocol.FilesRead{Path: "long"}).Kept)
}

// recorded reports whether all that the journal has is the record that the session was removed.
func (r *rig) recorded(t *testing.T, id protocol.SessionID) bool {
	t.Helper()
	history, err := r.Journal.Load(t.Context(), id)
	return err == nil && len(history.Events) == 0 && history.Removed.Sequence == history.Last
}

// left is what the fleet has of a session.
func (r *rig) left(t *testing.T, id protocol.SessionID) []string {
	t.Helper()
	var left []string
	for name, subject := range map[string]string{
		wire.SessionsStream(r.Name): wire.EventSubject(r.Name, id), wire.ResultsStream(r.Name): wire.ResultSubject(r.Name, id, "*"),
		wire.WorkspacesStream(r.Name): wire.WorkspaceSubject(r.Name, wire.HashLane(protocol.SandboxKey(string(id)).Lane())),
	} {
		stream, err := r.JS.Stream(t.Context(), name)
		require.NoError(t, err)
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(subject))
		require.NoError(t, err)
		for subject := range info.State.Subjects {
			if name == wire.SessionsStream(r.Name) && r.recorded(t, id) {
				continue
			}
			left = append(left, subject)
		}
	}
	for _, bucket := range []string{wire.BlobsBucket(r.Name), wire.KeptBucket(r.Name)} {
		store, err := r.JS.ObjectStore(t.Context(), bucket)
		require.NoError(t, err)
		objects, err := store.List(t.Context(), jetstream.ListObjectsShowDeleted())
		if err != nil {
			require.ErrorIs(t, err, jetstream.ErrNoObjectsFound)
		}
		for _, object := range objects {
			if strings.Contains(object.Name, "/"+string(id)+"/") {
				left = append(left, object.Name)
			}
		}
	}
	home := filepath.Join(r.data, "sandboxes", string(id))
	if _, err := os.Stat(home); err == nil {
		left = append(left, home)
	} else {
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	return left
}

func TestRemove_LeavesNothingAndNobodyElses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "s")
	r.lived(t, "s2")
	before := r.left(t, "s2")
	require.Len(t, r.left(t, "s"), 1+4+5+2)

	removed := r.mustRemove(t, "s", Options{})
	require.Equal(t, report.Removed{Events: 1, Results: 5, Bodies: 5, Workspace: true}, removed)
	require.Empty(t, r.left(t, "s"))
	require.ElementsMatch(t, before, r.left(t, "s2"), "of which s is a prefix")
	require.DirExists(t, "/etc")

	removed = r.mustRemove(t, "s", Options{})
	require.Equal(t, report.Removed{}, removed)
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "new"}).Error, "the id can begin anew")
}

func TestRemove_RefusesWhatIsBusyUnlessForced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	mustAppend(t, r.Journal, "open", 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
	_, err := Remove(t.Context(), r.Fleet, "open", Options{})
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "turn 1 is open")
	require.Len(t, r.left(t, "open"), 1)

	r.lived(t, "runs")
	result := make(chan *protocol.Result, 1)
	go func() {
		ended, err := r.dispatch(t.Context(), "runs", protocol.CommandRun{Command: "echo >begun; sleep 1000"})
		if err != nil {
			t.Error(err)
		}
		result <- ended
	}()
	begun := filepath.Join(r.data, "sandboxes", "runs", "workspace", "begun")
	require.Eventually(t, func() bool { _, err := os.Stat(begun); return err == nil }, time.Minute, time.Millisecond)
	_, err = Remove(t.Context(), r.Fleet, "runs", Options{})
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "lane sandbox/runs has 1 unfinished calls")
	r.mustRemove(t, "runs", Options{Force: true})
	require.Equal(t, protocol.StatusCancelled, (<-result).Status)
	require.Empty(t, r.left(t, "runs"))

	// Whoever still runs the session cannot extend it.
	history := mustLoad(t, r.Journal, "open")
	r.mustRemove(t, "open", Options{Force: true})
	_, err = r.Journal.Append(t.Context(), "open", history.Last, loop.Event{Type: loop.EventTurnEnded, Turn: 1})
	require.ErrorIs(t, err, loop.ErrJournalConflict)
}

// A removal that was cut short behind any step is completed by the next one.
func TestRemove_CutShortIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for done := 0; ; done++ {
		r.lived(t, "s")
		history := mustLoad(t, r.Journal, "s")
		half := mustRemover(t, r, "s", Options{})
		half.history = history
		if done > len(half.steps()) {
			break
		}
		for _, step := range half.steps()[:done] {
			require.NoError(t, step(t.Context()))
		}
		if done > 0 && done < len(half.steps()) {
			requireNoSession(t, r, "s", report.StateRemoving, loop.ErrRemoved)
		}
		r.mustRemove(t, "s", Options{})
		require.Empty(t, r.left(t, "s"), "cut short behind %d steps", done)
	}
}

// Results stay as long as a lane that others use may ask for them.
func TestRemove_CallsThatOtherLanesHaveKeepTheirResults(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "s")
	publisher, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	kept := []string{}
	for _, id := range []protocol.CallID{"ready", "waiting"} { // one is the ready message, one in the mailbox
		call := protocol.Call{
			ID: id, SessionID: "s", Tool: "test", Pool: "idle",
			Resources: []protocol.Use{{Key: "account/7", Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
		require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: &call}))
		result := wire.NewResult(&call, protocol.StatusOK, nil)
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		kept = append(kept, wire.ResultSubject(r.Name, "s", id))
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, "s", id), body) // as a worker that is lost now
		require.NoError(t, err)
	}
	removed := r.mustRemove(t, "s", Options{})
	require.Equal(t, report.Removed{Events: 1, Results: 5, Bodies: 5, Workspace: true}, removed)
	require.ElementsMatch(t, kept, r.left(t, "s"))

	driver := process.New(nil)
	_, err = r.StartWorker(t.Context(), worker.Options{
		Options:  lane.Options{Pool: "idle", AckWait: time.Minute},
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}}, Data: t.TempDir(),
	})
	require.NoError(t, err)
	calls, err := r.JS.Stream(t.Context(), wire.CallsStream(r.Name))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := calls.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, time.Minute, time.Millisecond)
	removed = r.mustRemove(t, "s", Options{})
	require.EqualValues(t, 2, removed.Results)
	require.Empty(t, r.left(t, "s"))
}

// A call that waits in a lane that others use is run when its session is removed, too, and its
// result stays.
func TestRemove_CallsThatWaitInOtherLanesAreRun(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "s")
	publisher, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	content := strings.Repeat("x", 9<<20) // which no message can carry
	call := protocol.Call{
		ID: "waits", SessionID: "s", Tool: "test", Pool: "idle",
		Resources: []protocol.Use{{Key: "sandbox/shared", Access: protocol.Exclusive}},
		Delivery:  protocol.AtMostOnce, IssuedAt: time.Now(), Payload: protocol.CommandRun{Command: "wc -c", Stdin: protocol.Bytes(content)},
	}
	require.NoError(t, publisher.Enqueue(t.Context(), lane.Outgoing{Call: &call}))

	r.mustRemove(t, "s", Options{})
	r.lived(t, "s")
	removal := mustRemover(t, r, "s", Options{Force: true})
	steps := removal.steps()
	listed := len(steps) - 3
	for _, step := range steps[:listed] {
		require.NoError(t, step(t.Context()))
	}
	driver := process.New(nil)
	_, err = r.StartWorker(t.Context(), worker.Options{
		Options:  lane.Options{Pool: "idle", AckWait: time.Minute},
		Settings: sandboxes.Settings{Driver: driver, Caps: isolation.Caps{Driver: driver.Name()}}, Data: t.TempDir(),
	})
	require.NoError(t, err)
	var result *protocol.Result
	require.Eventually(t, func() bool {
		result, err = publisher.Result(t.Context(), "s", "waits")
		return err == nil && result != nil
	}, time.Minute, time.Millisecond)
	for _, step := range steps[listed:] {
		require.NoError(t, step(t.Context()))
	}
	require.Nil(t, result.Error)
	value, is := result.Value.(protocol.CommandRunResult)
	require.True(t, is)
	require.Equal(t, "9437184\n", string(value.Stdout))
	require.Contains(t, r.left(t, "s"), wire.ResultSubject(r.Name, "s", "waits"), "whoever takes the lane over would run it again")
}

// TestRemove_AForkEndsNoCallsOfItsOrigin: calls that ran when it was made are those of its origin.
func TestRemove_AForkEndsNoCallsOfItsOrigin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	call := protocol.Call{
		ID: "runs", SessionID: "s", Tool: "test", Pool: protocol.DefaultPool,
		Resources: []protocol.Use{{Key: protocol.SandboxKey("s"), Access: protocol.Exclusive}},
		Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: protocol.CommandRun{Command: "touch runs; until [ -e ends ]; do sleep 0.05; done"},
	}
	_, err := r.Journal.Append(t.Context(), "s", 0,
		loop.Event{Type: loop.EventTurnStarted, Turn: 1},
		loop.Event{Type: loop.EventModelReply, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "a", Name: "bash", Arguments: "{}"}}}},
		loop.Event{
			Type: loop.EventToolCall, Turn: 1, Step: 1,
			CallFields:   loop.CallFields{CallID: call.ID, ToolCallID: "a", Name: "bash"},
			HandleFields: loop.HandleFields{Lane: "default/" + string(call.Lane())},
		})
	require.NoError(t, err)
	ended := make(chan *protocol.Result, 1)
	go func() {
		result, _ := r.Dispatcher.Call(t.Context(), &call)
		ended <- result
	}()
	home := filepath.Join(r.data, "sandboxes", "s", "workspace")
	require.Eventually(t, func() bool { _, err := os.Stat(filepath.Join(home, "runs")); return err == nil }, time.Minute, time.Millisecond)
	_, err = Fork(t.Context(), r.Journal, "s", At{}, "fork")
	require.NoError(t, err)
	r.mustRemove(t, "fork", Options{Force: true})
	require.NoError(t, os.WriteFile(filepath.Join(home, "ends"), nil, 0o600))
	result := <-ended
	require.NotNil(t, result)
	require.Equal(t, protocol.StatusOK, result.Status, "%v", result.Error)
}

// TestRemove_AnImportEndsNoCallsOfOthers: its author chose the ids and the lanes of its calls.
func TestRemove_AnImportEndsNoCallsOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := Import(t.Context(), r.Journal, []loop.Event{
		{Type: loop.EventTurnStarted, Turn: 1},
		{Type: loop.EventModelReply, Turn: 1, Step: 1, ReplyFields: loop.ReplyFields{ToolCalls: []loop.ToolCall{{ID: "a", Name: wire.AgentTool, Arguments: "{}"}}}},
		{
			Type: loop.EventToolCall, Turn: 1, Step: 1,
			CallFields:   loop.CallFields{CallID: "i", ToolCallID: "a", Name: wire.AgentTool},
			HandleFields: loop.HandleFields{Lane: "none/sandbox.x"},
		},
		{Type: loop.EventTurnEnded, Turn: 1},
	}, "i")
	require.NoError(t, err)
	removal := mustRemover(t, r, "i", Options{Force: true})
	sent := map[ownLane][]protocol.CallID{}
	require.NoError(t, removal.sent(t.Context(), "i", sent), "its agent is itself")
	require.Empty(t, sent)
}

// requireNoSession requires that a session takes no turn, and is listed with a state that says why.
func requireNoSession(t *testing.T, r *rig, id protocol.SessionID, state string, why error) {
	t.Helper()
	before := r.left(t, id)
	table, err := tools.NewTable()
	require.NoError(t, err)
	runner, err := loop.New(answers{}, nobody{}, r.Journal, table, &loop.Options{ModelName: "m"})
	require.NoError(t, err)
	for _, input := range []loop.Input{{Text: "go on"}, {}} {
		_, err = runner.Run(t.Context(), id, input)
		require.ErrorIs(t, err, why)
	}
	require.ElementsMatch(t, before, r.left(t, id))
	list, _, err := r.reader(t).List(t.Context(), 10)
	require.NoError(t, err)
	listed := slices.IndexFunc(list, func(s report.Session) bool { return s.SessionID == id })
	require.GreaterOrEqual(t, listed, 0, list)
	require.Equal(t, state, list[listed].State)
	_, err = Fork(t.Context(), r.Journal, id, At{}, "of-none")
	require.ErrorIs(t, err, why)
	_, err = Restore(t.Context(), r.Fleet, id, "", "c-1")
	require.ErrorIs(t, err, why)
}

// serve starts a coordinator.
func (r *rig) serve(t *testing.T, model loop.Model, schedules *schedule.Store) {
	t.Helper()
	r.serveOn(t, r.NC, model, schedules, time.Minute)
}

// serveOn is serve with a connection of its own, and a lease; 0 is that of the pool.
func (r *rig) serveOn(t *testing.T, nc *nats.Conn, model loop.Model, schedules *schedule.Store, lease time.Duration) {
	t.Helper()
	server, err := serve.New(t.Context(), nc, serve.Options{
		Fleet: r.Name, Holder: serve.Holder{ID: "server", Slots: 4, AckWait: lease}, Dispatcher: r.Dispatcher, Journal: r.Journal,
		Served: serve.Served{Models: map[string]loop.Model{"m": model}, Default: "m"}, Toolbox: serve.Toolbox{Schedules: schedules},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-done) })
}

// turn submits a turn.
func (r *rig) turn(t *testing.T, call protocol.Call) <-chan *protocol.Result {
	t.Helper()
	ended := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.Dispatcher.Call(t.Context(), &call)
		if err != nil {
			t.Error(err)
		}
		ended <- result
	}()
	return ended
}

// asks is a model that does what its script says, and reports that it was asked.
type asks struct {
	loop.Model

	asked chan struct{}
}

func (m asks) Reply(ctx context.Context, req loop.Request, delta func(loop.Delta)) (loop.Reply, error) {
	m.asked <- struct{}{}
	return m.Model.Reply(ctx, req, delta)
}

// A turn whose session is removed by force, by a process that is lost after its first step, ends
// with its next event: no call of it runs twice, and no other turn begins.
func TestRemove_ForcedAndLostAfterItsFirstStep(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	effects, go1 := filepath.Join(t.TempDir(), "effects"), filepath.Join(t.TempDir(), "go")
	script, err := scripted.Parse("script", fmt.Appendf(nil,
		`{"steps":[{"text":"a","tool_calls":[{"id":"c1","name":"bash","arguments":{"command":"echo ran >> %s; until test -e %s; do sleep 0.05; done"}}]},{"text":"done"}]}`,
		effects, go1))
	require.NoError(t, err)
	r.serve(t, script, nil)
	ended := r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "p"}, 0))
	require.Eventually(t, func() bool { b, _ := os.ReadFile(effects); return len(b) > 0 }, time.Minute, time.Millisecond)

	removal := mustRemover(t, r, "s", Options{Force: true})
	require.NoError(t, removal.steps()[0](t.Context()))
	waits := r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "another"}, 0))
	require.NoError(t, os.WriteFile(go1, nil, 0o600))
	for _, ended := range []<-chan *protocol.Result{ended, waits} {
		result := <-ended
		require.Equal(t, protocol.StatusFailed, result.Status)
		require.Equal(t, protocol.CodeNotFound, result.Error.Code)
		require.Contains(t, result.Error.Message, "session rm")
	}
	content, err := os.ReadFile(effects)
	require.NoError(t, err)
	require.Equal(t, "ran\n", string(content))
	requireNoSession(t, r, "s", report.StateRemoving, loop.ErrRemoved)
	_, err = Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err, "nothing of it is busy")
	require.Empty(t, r.left(t, "s"))
	require.Equal(t, protocol.StatusOK, (<-r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "p"}, 0))).Status, "the id can be used again")
}

// never is a model that reports that it was asked, and does not answer.
type never struct{ asked chan struct{} }

func (m never) Reply(ctx context.Context, _ loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	m.asked <- struct{}{}
	<-ctx.Done()
	return loop.Reply{}, ctx.Err()
}

// A forced removal needs nothing that runs: neither the coordinator of a turn, nor a worker for the
// workspace, nor the holder of a lane that was lost. What it has cancelled does not run later.
func TestRemove_ForcedNeedsNothingThatRuns(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]protocol.Status{"the turn waits": protocol.StatusCancelled, "its coordinator is lost": protocol.StatusOutcomeUnknown} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.lived(t, "s")
			require.NoError(t, r.worker.Drain(t.Context()))
			ended := r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "p"}, 0))
			if ends == protocol.StatusOutcomeUnknown {
				nc := r.connect()
				model := never{asked: make(chan struct{}, 1)}
				r.serveOn(t, nc, model, nil, 2*time.Second)
				<-model.asked
				nc.Close()
			} else {
				require.Eventually(t, func() bool {
					turns, _, err := Unfinished(t.Context(), r.Fleet, "s", "")
					return err == nil && len(turns) == 1
				}, time.Minute, time.Millisecond)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			removed, err := Remove(ctx, r.Fleet, "s", Options{Force: true})
			require.NoError(t, err)
			require.True(t, removed.Workspace)
			require.Equal(t, ends, (<-ended).Status)
			left := slices.DeleteFunc(r.left(t, "s"), func(path string) bool { return strings.HasPrefix(path, r.data) })
			require.Empty(t, left, "but the copy on the disk of a worker that does not run")
			_, err = Remove(ctx, r.Fleet, "s", Options{Force: true})
			require.NoError(t, err, "it is done once more")

			script, err := scripted.Parse("script", []byte(`{"steps":[{"text":"done"}]}`))
			require.NoError(t, err)
			asked := make(chan struct{}, 10)
			r.serveOn(t, r.NC, asks{script, asked}, nil, 0)
			require.Equal(t, protocol.StatusOK, (<-r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "another"}, 0))).Status)
			require.Len(t, asked, 1, "nothing else is run")
		})
	}
}

// A turn that begins between the look at a session and the mark of its removal refuses that.
func TestRemove_ATurnBeginsBeforeTheMark(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "s")
	removal := mustRemover(t, r, "s", Options{removes: true})
	require.NoError(t, removal.refuseBusy(t.Context(), ""))
	history := mustLoad(t, r.Journal, "s")
	mustAppend(t, r.Journal, "s", history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2})
	require.ErrorIs(t, removal.mark(t.Context()), ErrBusy)
	history = mustLoad(t, r.Journal, "s")
	require.Len(t, history.Events, 3)
}

// In a stream without room the removal, which makes room, finds some for its mark.
func TestRemove_FromAStreamWithoutRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stream, err := r.JS.Stream(t.Context(), wire.SessionsStream(r.Name))
	require.NoError(t, err)
	for _, messages := range []int{1, 3} {
		r.lived(t, "s")
		for range messages - 1 {
			history := mustLoad(t, r.Journal, "s")
			mustAppend(t, r.Journal, "s", history.Last, loop.Event{Type: loop.EventTurnStarted, Turn: 2}, loop.Event{Type: loop.EventTurnEnded, Turn: 2})
		}
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		config := info.Config
		config.MaxBytes = int64(info.State.Bytes)
		_, err = r.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
		removal := mustRemover(t, r, "s", Options{Force: true})
		for i, step := range removal.steps() {
			require.NoError(t, step(t.Context()))
			history, err := r.Journal.Load(t.Context(), "s")
			require.NotErrorIs(t, err, loop.ErrJournalInvalid)
			require.True(t, len(history.Events) > 0 || i == len(removal.steps())-1, "a process that is lost behind step %d leaves an empty session", i)
		}
		require.Empty(t, r.left(t, "s"))
		config.MaxBytes = -1
		_, err = r.JS.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
}

// Nothing that wakes a removed session is left: a trigger that its turn sets meanwhile, a schedule
// of a user, a turn of a trigger that is on its way.
func TestRemove_LeavesNothingThatWakes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	store, err := schedule.Open(t.Context(), r.JS, r.Name)
	require.NoError(t, err)
	r.lived(t, "s")
	nightly := schedule.Schedule{Name: "nightly", Cron: "@monthly", KeepSession: true, Call: serve.NewCall("s", wire.TurnRun{Prompt: "p"}, 0)}
	_, err = store.Add(t.Context(), nightly)
	require.NoError(t, err)
	other := nightly
	other.Name, other.Call = "other", serve.NewCall("s2", wire.TurnRun{Prompt: "p"}, 0)
	_, err = store.Add(t.Context(), other)
	require.NoError(t, err)
	_, err = Remove(t.Context(), r.Fleet, "s", Options{})
	require.ErrorIs(t, err, ErrBusy)
	require.ErrorContains(t, err, "schedule nightly starts turns or calls in it; remove that (schedule rm nightly), or force")
	require.Len(t, r.left(t, "s"), 1+4+5+2, "nothing was removed")

	removal := mustRemover(t, r, "s", Options{Force: true})
	trigger := schedule.Schedule{
		Name: "t-x", Call: serve.NewCall("s", wire.TurnRun{Prompt: "p", Trigger: &wire.TurnTrigger{Name: "t-x", By: "x"}}, 0), KeepSession: true,
		Trigger: schedule.Trigger{Once: time.Now().Add(time.Hour), By: "x"}, Secret: "x",
	}
	for i, step := range removal.steps() {
		require.NoError(t, step(t.Context()))
		if i == 1 {
			require.NoError(t, store.AddTrigger(t.Context(), trigger))
		}
	}
	require.Equal(t, []string{"nightly"}, removal.removed.Schedules)
	left, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.Equal(t, "other", left[0].Name)

	asked := make(chan struct{}, 9)
	r.serve(t, asks{answers{}, asked}, store)
	for _, begin := range []bool{false, true} { // also when the name is used again
		if begin {
			require.Equal(t, protocol.StatusOK, (<-r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "p"}, 0))).Status)
			<-asked
		}
		before := r.left(t, "s")
		result := <-r.turn(t, trigger.At(time.Now()))
		require.Equal(t, codes.TurnPostponed, result.Error.Code)
		require.Contains(t, result.Error.Message, "the session in which it was set was removed")
		require.Empty(t, asked)
		require.Subset(t, append(before, wire.ResultSubject(r.Name, "s", result.CallID)), r.left(t, "s"))
		trigger.Secret = "y" // an id of its own
	}
}

// A process that was stopped while it removed a session removes nothing of the one that has begun
// again, when another process has completed the removal: whichever step it is at.
func TestRemove_AProcessThatWasStoppedLeavesWhatHasBegunAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.lived(t, "s")
	late := mustRemover(t, r, "s", Options{Force: true})
	require.NoError(t, late.mark(t.Context()))
	r.mustRemove(t, "s", Options{Force: true})
	r.lived(t, "s")
	before := r.left(t, "s")
	for i, step := range late.steps()[1:] {
		require.ErrorIs(t, step(t.Context()), journal.ErrBegunAgain, "step %d", i+1)
	}
	require.ElementsMatch(t, before, r.left(t, "s"))
}

// A turn that was accepted does not begin while its session is removed.
func TestRemove_ATurnBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	asked := make(chan struct{}, 1)
	r.serve(t, asks{answers{}, asked}, nil)
	removal := mustRemover(t, r, "s", Options{Force: true})
	require.NoError(t, removal.steps()[0](t.Context()))
	result := <-r.turn(t, serve.NewCall("s", wire.TurnRun{Prompt: "go"}, 0))
	require.Equal(t, protocol.CodeNotFound, result.Error.Code)
	for _, step := range removal.steps()[1:] {
		require.NoError(t, step(t.Context()))
	}
	require.Empty(t, asked)
	require.Empty(t, r.left(t, "s"))
}
