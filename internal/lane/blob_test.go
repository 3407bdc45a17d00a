package lane_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A payload and a value that no message can carry go through the object store,
// inline and through the mailbox, and leave nothing of the call behind.
func TestLane_LargePayloadsAndValues(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	large := strings.Repeat("0123456789abcdef", int(f.nc.MaxPayload())/16+1) // bytes are encoded several times more slowly
	started := make(chan int, 4)
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result {
		payload, ok := run.Call.Payload.(protocol.CommandRun)
		if !ok {
			return protocol.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeInternal, "payload is %T", run.Call.Payload))
		}
		started <- len(payload.Command)
		r := protocol.NewResult(run.Call, protocol.StatusOK, nil)
		r.Value = protocol.TurnRunResult{Text: payload.Command}
		return r
	}), lane.Options{})

	told := make(chan *protocol.Result, 4)
	watch, err := lane.NewResults(f.nc, protocol.DefaultFleet, func(err error) { t.Error(err) }).Watch(t.Context(), "s",
		func(r *protocol.Result) { told <- r }, nil)
	require.NoError(t, err)
	defer watch.Stop()
	calls := []*protocol.Call{newCall("s", exclusive("account/a")), newCall("s", exclusive("account/a"))}
	for _, call := range calls {
		call.Payload = protocol.CommandRun{Command: large}
	}
	put(t, p, calls...)
	for _, call := range calls {
		require.Equal(t, len(large), <-started)
		want := protocol.TurnRunResult{Text: large}
		r := f.await(p, call)
		require.Nil(t, r.Error)
		require.Equal(t, want, r.Value, "looked up")
		require.Equal(t, want, (<-told).Value, "told")
	}
	f.requireQuiet()
	store, err := f.js.ObjectStore(t.Context(), protocol.DefaultFleet.BlobsBucket())
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 2, "the values stay as long as the results, the payloads are gone")
}

func TestLane_PayloadThatIsGoneIsRejected(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	p := f.publisher()
	call := newCall("s", exclusive("account/a"))
	call.Payload = protocol.Stored{Blob: "call/s/nothing", Bytes: 1}
	put(t, p, call)
	f.hold(executorFunc(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) }), lane.Options{})
	r := f.await(p, call)
	require.Equal(t, protocol.StatusRejected, r.Status)
	require.Equal(t, protocol.CodeInvalidPayload, r.Error.Code)
	f.requireQuiet()
}

func TestLane_TooLargeForTheFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	call := newCall("s", exclusive("account/a"))
	call.Payload = protocol.CommandRun{Command: strings.Repeat("x", 64<<20)}
	faults := f.publisher().Put(t.Context(), []lane.Outgoing{{Call: call}})
	require.ErrorIs(t, faults[0], lane.ErrTooLarge)
	require.Zero(t, f.stored())
}
