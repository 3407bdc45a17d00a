package calls_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

func TestMain(m *testing.M) {
	natsiotest.Overlap()
	goleak.VerifyTestMain(m)
}

const patience = time.Minute

// rig is a fleet with a dispatcher; holders are added by the test.
type rig struct {
	*natsiotest.Fleet

	t          *testing.T
	dispatcher *calls.Dispatcher
}

func newRig(t *testing.T, topology natsio.Topology) *rig {
	t.Helper()
	r := &rig{Fleet: natsiotest.New(t, topology), t: t}
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{})
	return r
}

func (r *rig) newDispatcher(nc *nats.Conn, o calls.Options) *calls.Dispatcher {
	r.t.Helper()
	o.Logger = r.Logger
	if o.LookAfter == 0 {
		o.LookAfter = 50 * time.Millisecond
	}
	d, err := calls.New(r.t.Context(), nc, r.Name, &o)
	require.NoError(r.t, err)
	return d
}

// executor executes calls by a function.
type executor func(ctx context.Context, run *lane.Run) protocol.Result

// host is a lane host with an executor.
type host struct {
	lane.DefaultHost

	execute executor
}

func (h host) Execute(ctx context.Context, run *lane.Run) protocol.Result { return h.execute(ctx, run) }
func (host) Release(protocol.Lane)                                        {}

func succeed(run *lane.Run) protocol.Result {
	r := wire.NewResult(run.Call, protocol.StatusOK, nil)
	r.Value = wire.NoopResult{}
	return r
}

// hold runs a holder of the default pool until the test ends.
func (r *rig) hold(e executor) { r.holdPool(protocol.DefaultPool, e) }

func (r *rig) holdPool(pool protocol.Pool, e executor) {
	r.t.Helper()
	nc, _ := r.ConnectVia()
	h, err := lane.NewHolder(r.t.Context(), nc, host{execute: e}, lane.Options{
		Fleet: r.Name, Pool: pool, Worker: "w", Slots: 16, AckWait: patience, Logger: r.Logger, // a busy machine ends no lease
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx, ctx) }()
	r.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("holder: %v", err)
		}
	})
}

// newCalls makes n calls of one session, each of a lane of its own.
func newCalls(n int) []protocol.Call {
	session := protocol.NewSessionID()
	calls := make([]protocol.Call, n)
	for i := range calls {
		calls[i] = protocol.Call{
			ID: wire.NewCallID(session, "", 1, 1, i), SessionID: session, Tool: "test", Turn: 1, Step: 1, Index: i, Pool: protocol.DefaultPool,
			Resources: []protocol.Use{{Key: protocol.ResourceKey(fmt.Sprintf("account/%s-%d", session, i)), Access: protocol.Exclusive}},
			Delivery:  protocol.Idempotent, IssuedAt: time.Now(), Payload: wire.Noop{},
		}
	}
	return calls
}

// tooLarge is more than a fleet keeps. It is a text because bytes are encoded several times more
// slowly.
func tooLarge() protocol.Payload { return protocol.CommandRun{Command: strings.Repeat("x", 64<<20)} }

// sameLane puts all calls into the lane of the first.
func sameLane(calls []protocol.Call, access protocol.Access) []protocol.Call {
	key := calls[0].Resources[0].Key
	for i := range calls {
		calls[i].Resources = []protocol.Use{{Key: key, Access: access}}
	}
	return calls
}

// told is what a dispatch has told so far. It is safe for concurrent use.
type told struct {
	t *testing.T

	mu      sync.Mutex
	busy    bool
	updates []loop.Update
}

func (o *told) observe(u loop.Update) {
	o.mu.Lock()
	if o.busy {
		o.t.Error("updates overlap")
	}
	o.busy = true
	o.updates = append(o.updates, u)
	o.mu.Unlock()
	o.mu.Lock()
	o.busy = false
	o.mu.Unlock()
}

// of is what was told about a call.
func (o *told) of(id protocol.CallID) (states []loop.State, result *protocol.Result) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, u := range o.updates {
		if u.CallID != id {
			continue
		}
		states = append(states, u.State)
		if (u.State == loop.StateDone) != (u.Result != nil) {
			o.t.Errorf("state %s with result %v", u.State, u.Result)
		}
		if u.Result != nil {
			result = u.Result
		}
	}
	return states, result
}

// dispatch dispatches from any goroutine.
func (r *rig) dispatch(ctx context.Context, calls []protocol.Call) (*told, error) {
	o := &told{t: r.t}
	return o, r.dispatcher.Dispatch(ctx, calls, o.observe)
}

func (r *rig) mustDispatch(ctx context.Context, calls []protocol.Call) *told {
	r.t.Helper()
	o, err := r.dispatch(ctx, calls)
	require.NoError(r.t, err)
	return o
}

// dispatchAndCancel cancels calls when all of them are in the queue.
func (r *rig) dispatchAndCancel(calls []protocol.Call) (*told, error) {
	ctx, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	o, queued := &told{t: r.t}, 0
	return o, r.dispatcher.Dispatch(ctx, calls, func(u loop.Update) {
		o.observe(u)
		if u.State == loop.StateQueued {
			queued++
		}
		if queued == len(calls) {
			cancel()
		}
	})
}

// requireDone checks that a call was told to be done once, and last, with a status.
func requireDone(t *testing.T, o *told, call protocol.Call, status protocol.Status, code protocol.Code) *protocol.Result {
	t.Helper()
	states, result := o.of(call.ID)
	require.NotNil(t, result, "call %d: %v", call.Index, states)
	done := 0
	for _, s := range states {
		if s == loop.StateDone {
			done++
		}
	}
	require.Equal(t, 1, done, "%v", states)
	require.Equal(t, loop.StateDone, states[len(states)-1])
	if code == "" {
		require.Nil(t, result.Error)
	} else {
		require.NotNil(t, result.Error)
		require.Equal(t, code, result.Error.Code, result.Error.Message)
	}
	require.Equal(t, status, result.Status)
	require.Equal(t, call.ID, result.CallID)
	return result
}

// requireQuiet waits until no calls are left in the stream.
func (r *rig) requireQuiet() {
	r.t.Helper()
	stream, err := r.JS.Stream(r.t.Context(), wire.CallsStream(r.Name))
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool {
		info, err := stream.Info(r.t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, 5*time.Millisecond)
}
