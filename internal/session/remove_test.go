package session

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/fleet"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/sandbox/isolation"
	"github.com/toolfleet/toolfleet/internal/sandbox/process"
	"github.com/toolfleet/toolfleet/internal/serve"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker"
	"github.com/toolfleet/toolfleet/internal/worker/sandboxes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a fleet with a worker, and a session that has left everything that one can leave.
type rig struct {
	*fleet.Fleet

	data string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return rigOf(t, worker.Options{})
}

func rigOf(t *testing.T, o worker.Options) *rig {
	t.Helper()
	data := t.TempDir()
	f, err := fleet.Connect(t.Context(), fleet.Options{Name: "tf", Embedded: fleet.Embedded{Data: data}, Client: "test", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(f.Close)
	driver := process.New(nil)
	o.Data, o.Driver, o.Caps, o.AckWait = data, driver, isolation.Caps{Driver: driver.Name()}, time.Minute // a busy machine ends no lease
	_, err = f.StartWorker(t.Context(), o)
	require.NoError(t, err)
	return &rig{Fleet: f, data: data}
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
	return r.Dispatcher.One(ctx, &call)
}

// lived makes a session with a turn, files, a background process, and output that is kept apart.
func (r *rig) lived(t *testing.T, id protocol.SessionID) {
	t.Helper()
	_, err := r.Journal.Append(t.Context(), id, 0,
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

	removed, err := Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
	require.Equal(t, report.Removed{Events: 1, Results: 5, Bodies: 5, Workspace: true}, removed)
	require.Empty(t, r.left(t, "s"))
	require.ElementsMatch(t, before, r.left(t, "s2"), "of which s is a prefix")
	require.DirExists(t, "/etc")

	removed, err = Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
	require.Equal(t, report.Removed{}, removed)
	require.Nil(t, r.call(t.Context(), t, "s", protocol.FilesWrite{Path: "new"}).Error, "the id can begin anew")
}

func TestRemove_RefusesWhatIsBusyUnlessForced(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.Journal.Append(t.Context(), "open", 0, loop.Event{Type: loop.EventTurnStarted, Turn: 1})
	require.NoError(t, err)
	_, err = Remove(t.Context(), r.Fleet, "open", Options{})
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
	_, err = Remove(t.Context(), r.Fleet, "runs", Options{Force: true})
	require.NoError(t, err)
	require.Equal(t, protocol.StatusCancelled, (<-result).Status)
	require.Empty(t, r.left(t, "runs"))

	// Whoever still runs the session cannot extend it.
	history, err := r.Journal.Load(t.Context(), "open")
	require.NoError(t, err)
	_, err = Remove(t.Context(), r.Fleet, "open", Options{Force: true})
	require.NoError(t, err)
	_, err = r.Journal.Append(t.Context(), "open", history.Last, loop.Event{Type: loop.EventTurnEnded, Turn: 1})
	require.ErrorIs(t, err, loop.ErrJournalConflict)
}

// A removal that was cut short behind any step is completed by the next one.
func TestRemove_CutShortIsCompleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for done := range 9 {
		r.lived(t, "s")
		half, err := newRemover(t.Context(), r.Fleet, "s", Options{})
		require.NoError(t, err)
		for _, step := range half.steps()[:done] {
			require.NoError(t, step(t.Context()))
		}
		_, err = Remove(t.Context(), r.Fleet, "s", Options{})
		require.NoError(t, err)
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
		require.NoError(t, publisher.Enqueue(t.Context(), []lane.Outgoing{{Call: &call}})[0])
		result := wire.NewResult(&call, protocol.StatusOK, nil)
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		kept = append(kept, wire.ResultSubject(r.Name, "s", id))
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, "s", id), body) // as a worker that is lost now
		require.NoError(t, err)
	}
	removed, err := Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
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
	removed, err = Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
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
	require.NoError(t, publisher.Enqueue(t.Context(), []lane.Outgoing{{Call: &call}})[0])

	_, err = Remove(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
	r.lived(t, "s")
	removal, err := newRemover(t.Context(), r.Fleet, "s", Options{})
	require.NoError(t, err)
	steps := removal.steps()
	listed := len(steps) - 2
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

// slow is a model that thinks until it is stopped.
type slow struct{ asked chan struct{} }

func (m slow) Reply(ctx context.Context, _ loop.Request, _ func(loop.Delta)) (loop.Reply, error) {
	m.asked <- struct{}{}
	<-ctx.Done()
	return loop.Reply{}, ctx.Err()
}

// A turn that waited begins while its session is removed, and leaves nothing either.
func TestRemove_ATurnBeginsMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	model := slow{make(chan struct{})}
	server, err := serve.New(t.Context(), r.NC, serve.Options{
		Fleet: r.Name, Holder: serve.Holder{ID: "server", Slots: 1}, Dispatcher: r.Dispatcher, Journal: r.Journal,
		Served: serve.Served{Models: map[string]loop.Model{"slow": model}, Default: "slow"},
	})
	require.NoError(t, err)
	var running sync.WaitGroup
	defer running.Wait()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running.Go(func() {
		if err := server.Run(ctx, ctx); err != nil {
			t.Error(err)
		}
	})

	removal, err := newRemover(t.Context(), r.Fleet, "s", Options{Force: true})
	require.NoError(t, err)
	require.NoError(t, removal.steps()[0](t.Context()))
	result := make(chan *protocol.Result, 1)
	running.Go(func() {
		call := serve.NewCall("s", wire.TurnRun{Prompt: "go"}, 0)
		ended, err := r.Dispatcher.One(t.Context(), &call)
		if err != nil {
			t.Error(err)
		}
		result <- ended
	})
	<-model.asked
	for _, step := range removal.steps()[1:] {
		require.NoError(t, step(t.Context()))
	}
	require.Equal(t, protocol.StatusCancelled, (<-result).Status)
	require.Empty(t, r.left(t, "s"))
}
