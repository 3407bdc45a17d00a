package worker_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/sandbox/snapshot"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/workspace"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// lose has a call accepted, and leaves what a worker leaves that was lost after a commit, and
// before the result was stored: the mark of the start, and a checkpoint with a file and the result
// of covered. The call then has the result that is sent.
func (r *rig) lose(call *protocol.Call, covered protocol.CallID) <-chan *protocol.Result {
	r.t.Helper()
	_, stop := r.work(r.options()) // makes the pool
	stop()
	done := make(chan *protocol.Result, 1)
	go func() {
		result, err := r.dispatcher.Call(r.t.Context(), call)
		if err != nil {
			r.t.Errorf("call: %v", err)
		}
		done <- result
	}()
	hash, js := wire.HashLane(call.Lane()), r.JS
	stream, err := js.Stream(r.t.Context(), wire.CallsStream(r.Name))
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool { // the first call of a lane is in its ready message
		_, err := stream.GetLastMsgForSubject(r.t.Context(), wire.ReadySubject(r.Name, call.Pool, hash))
		return err == nil
	}, patience, 10*time.Millisecond, "the call is not accepted")
	_, err = js.Publish(r.t.Context(), wire.StartSubject(r.Name, call.Pool, hash, call.ID, 1), []byte("w-lost 1"))
	require.NoError(r.t, err)
	store, err := workspace.Open(r.t.Context(), r.NC, r.Name, "")
	require.NoError(r.t, err)
	taken, err := store.Take(r.t.Context(), call.Lane(), "w-lost", 1)
	require.NoError(r.t, err)
	dir := r.t.TempDir()
	require.NoError(r.t, os.MkdirAll(filepath.Join(dir, "workspace"), 0o700))
	require.NoError(r.t, os.WriteFile(filepath.Join(dir, "workspace", "f"), []byte("once\n"), 0o600))
	root, err := os.OpenRoot(dir)
	require.NoError(r.t, err)
	defer root.Close()
	delta, err := snapshot.Save(r.t.Context(), root, taken.Tree(), snapshot.Index{}, store, nil)
	require.NoError(r.t, err)
	require.NoError(r.t, taken.Commit(r.t.Context(), delta, &protocol.Result{
		CallID: covered, SessionID: call.SessionID, WorkerID: "w-lost", Attempt: 1, Status: protocol.StatusOK, Value: wire.NoopResult{},
	}))
	return done
}

// awaited is the result that comes.
func (r *rig) awaited(done <-chan *protocol.Result) *protocol.Result {
	r.t.Helper()
	select {
	case result := <-done:
		require.NotNil(r.t, result)
		return result
	case <-time.After(2 * patience):
		require.FailNow(r.t, "no result")
		return nil
	}
}

// A call whose changes are kept ends with the result that is kept with them, also when it must not
// start again, its time is over, or nothing but a handler runs it.
func TestCovered_EndsWithItsResult(t *testing.T) {
	t.Parallel()
	var ran atomic.Int32
	counts := func(ctx context.Context, h *kinds.Attempt, _ json.RawMessage) (json.RawMessage, error) {
		ran.Add(1)
		_, err := h.Sandbox(ctx)
		return json.RawMessage(`"ran"`), err
	}
	user, err := wire.NewUserPayload("counts", json.RawMessage(`{}`))
	require.NoError(t, err)
	for name, change := range map[string]func(*protocol.Call){
		"at most once":       func(c *protocol.Call) { c.Delivery = protocol.AtMostOnce },
		"no further attempt": func(c *protocol.Call) { c.Delivery, c.MaxAttempts = protocol.Rollback, 1 },
		"a handler":          func(c *protocol.Call) { c.Delivery, c.Payload = protocol.Rollback, user },
		"a command":          func(c *protocol.Call) { c.Delivery = protocol.Rollback },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			call := newCall("s-1", bash("echo twice >> f"))
			change(&call)
			done := r.lose(&call, call.ID)
			o := r.options()
			o.Handlers.Calls = map[protocol.Kind]kinds.Handler{"counts": counts}
			r.work(o)
			result := r.awaited(done)
			requireOK(t, result)
			require.Equal(t, wire.NoopResult{}, result.Value)
			require.Equal(t, protocol.WorkerID("w-lost"), result.WorkerID)
			require.Equal(t, 1, result.Attempt)
			require.Equal(t, "once\n", string(value[protocol.CommandRunResult](t, r.do("s-1", bash("cat f"))).Stdout))
			require.Zero(t, ran.Load())
		})
	}
}

// Without a checkpoint nobody can tell what became of it.
func TestCovered_UnknownWithoutACheckpoint(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	call := newCall("s-1", bash("echo twice >> f"))
	call.Delivery = protocol.AtMostOnce
	done := r.lose(&call, wire.RandomCallID())
	r.work(r.options())
	requireFault(t, r.awaited(done), protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
}
