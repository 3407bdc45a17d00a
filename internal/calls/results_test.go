package calls_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// What a call wrote before it ended is passed on before its result.
func TestResults_OutputComesBeforeTheResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	results := calls.NewResults(r.NC, r.Name, func(err error) { t.Error(err) })
	call := newCalls(1)[0]
	const pieces, rounds = 20, 300
	seen, ended := 0, make(chan int, 1)
	watch, err := results.Watch(t.Context(), call.SessionID,
		func(*protocol.Result) { ended <- seen },
		func(*wire.Frame) { seen++ })
	require.NoError(t, err)
	t.Cleanup(watch.Stop)
	worker := r.Connect()
	for round := range rounds {
		r.publishEnd(worker, &call, pieces)
		require.Equal(t, (round+1)*pieces, <-ended)
	}
}

// publishEnd publishes pieces of output of a call, and its result.
func (r *rig) publishEnd(worker *nats.Conn, call *protocol.Call, pieces int) {
	r.t.Helper()
	for i := range pieces {
		frame, err := wire.EncodeFrame(&wire.Frame{CallID: call.ID, Seq: uint64(i), Kind: wire.FrameStdout, WorkerID: "w", Attempt: 1, Data: protocol.Bytes("x")})
		require.NoError(r.t, err)
		require.NoError(r.t, worker.Publish(wire.OutputSubject(r.Name, call.SessionID, call.ID), frame))
	}
	result := wire.NewResult(call, protocol.StatusOK, nil)
	result.Value = protocol.CommandRunResult{}
	body, err := wire.EncodeResult(&result)
	require.NoError(r.t, err)
	require.NoError(r.t, worker.Publish(wire.DoneSubject(r.Name, call.SessionID, call.ID), body))
}

// A watch gets everything of its session until it is stopped, and a handle what its call has.
func TestResults_EachGetsWhatItWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	results := calls.NewResults(r.NC, r.Name, func(err error) { t.Error(err) })
	sent := newCalls(2)
	got := make(chan string, 100)
	watch := func(name string) *calls.Watch {
		w, err := results.Watch(t.Context(), sent[0].SessionID,
			func(result *protocol.Result) { got <- name + " result of " + string(result.CallID) },
			func(f *wire.Frame) { got <- name + " frame of " + string(f.CallID) })
		require.NoError(t, err)
		t.Cleanup(w.Stop)
		return w
	}
	first, all := watch("first"), watch("all")
	worker := r.Connect()
	ends := func(call protocol.Call) (seen []string) {
		r.publishEnd(worker, &call, 1)
		for last := false; !last; {
			line := <-got
			seen, last = append(seen, line), line == "all result of "+string(call.ID)
		}
		return seen
	}
	of := func(call protocol.Call, names ...string) (lines []string) {
		for _, what := range []string{" frame of ", " result of "} {
			for _, name := range names {
				lines = append(lines, name+what+string(call.ID))
			}
		}
		return lines
	}
	require.Equal(t, of(sent[0], "first", "all"), ends(sent[0]))
	first.Stop()
	require.Equal(t, of(sent[1], "all"), ends(sent[1]))
	all.Stop()
	require.Empty(t, got)

	frames := make(chan protocol.CallID, 100)
	handles := r.dispatcher.SendWith(t.Context(), sent, calls.SendOptions{Frames: func(f *wire.Frame) { frames <- f.CallID }})
	for _, h := range handles {
		require.NoError(t, h.Accepted())
	}
	other := sent[0]
	other.ID = "other"
	r.publishEnd(worker, &other, 1)
	r.publishEnd(worker, &sent[0], 2)
	<-handles[0].Done()
	require.Equal(t, sent[0].ID, <-frames)
	require.Equal(t, sent[0].ID, <-frames)
	require.Empty(t, frames)
	handles[1].Detach()
	_, err := handles[1].Result()
	require.ErrorIs(t, err, loop.ErrDetached)
	attached, err := r.dispatcher.Attach(t.Context(), protocol.CallRef{SessionID: sent[1].SessionID, ID: sent[1].ID})
	require.NoError(t, err, "a detached call stays")
	r.publishEnd(worker, &sent[1], 0)
	<-attached.Done()
}
