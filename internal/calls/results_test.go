package calls_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
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
		frame, err := wire.Encode(&wire.Frame{CallID: call.ID, Seq: uint64(i), Kind: wire.FrameStdout, WorkerID: "w", Attempt: 1, Data: protocol.Bytes("x")})
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

// A worker that may store results of one call does not end another call by the contents of a
// result.
func TestDispatch_AResultThatNamesAnotherCallIsNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	worker, calls := r.Connect(), newCalls(1)
	forged := wire.NewResult(&calls[0], protocol.StatusOK, nil)
	forged.Value, forged.WorkerID = wire.NoopResult{}, "forger"
	body, err := wire.EncodeResult(&forged)
	require.NoError(t, err)
	release := make(chan struct{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		<-release
		return succeed(run)
	})
	o := &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
		o.observe(u)
		if u.State != loop.StateQueued {
			return
		}
		// It is stored as the result of another call of the session, so it is not refused.
		require.NoError(t, worker.Publish(wire.ResultSubject(r.Name, calls[0].SessionID, "junk"), body))
		require.NoError(t, worker.Publish(wire.DoneSubject(r.Name, calls[0].SessionID, "junk"), body))
		require.NoError(t, worker.Flush())
		close(release)
	}))
	require.EqualValues(t, "w", requireDone(t, o, calls[0], protocol.StatusOK, "").WorkerID)
}

// What is stored in the place of a call's result and is that of another call is no result.
func TestDispatch_AStoredResultOfAnotherCallIsUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(2)
	other := wire.NewResult(&calls[1], protocol.StatusOK, nil)
	other.Value = wire.NoopResult{}
	body, err := wire.EncodeResult(&other)
	require.NoError(t, err)
	_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, calls[0].SessionID, calls[0].ID), body)
	require.NoError(t, err)
	o := r.mustDispatch(t.Context(), calls[:1])
	requireDone(t, o, calls[0], protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
}

// A call that asks for a level has not run where its result says that it had less.
func TestDispatch_AResultOfALesserLevelIsNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(4)
	for i, level := range []string{"none", "full", "kernel", ""} { // "" is of calls that run in no sandbox
		calls[i].MinLevel = "full"
		result := wire.NewResult(&calls[i], protocol.StatusOK, nil)
		result.Value, result.Level, result.WorkerID = wire.NoopResult{}, level, "liar"
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, calls[i].SessionID, calls[i].ID), body)
		require.NoError(t, err)
	}
	o := r.mustDispatch(t.Context(), calls)
	refused := requireDone(t, o, calls[0], protocol.StatusFailed, codes.SandboxLevel)
	require.EqualValues(t, "liar", refused.WorkerID)
	require.Nil(t, refused.Value)
	require.Contains(t, refused.Error.Message, `worker liar reports that it ran at level "none"`)
	for _, call := range calls[1:] {
		requireDone(t, o, call, protocol.StatusOK, "")
	}
}

// Events of a turn may ask a person whether a call may be made. Workers may publish output of any
// session, so no event is taken from there.
func TestResults_EventsOfATurnAreNotTakenFromOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	faults := make(chan error, 8)
	results := calls.NewResults(r.NC, r.Name, func(err error) { faults <- err })
	session := protocol.NewSessionID()
	turn := wire.NewCallID(session, "", 1, 0, 0)
	frames := make(chan *wire.Frame, 8)
	watch, err := results.Watch(t.Context(), session, func(*protocol.Result) {}, func(f *wire.Frame) { frames <- f })
	require.NoError(t, err)
	defer watch.Stop()
	question, err := json.Marshal(loop.Event{Type: loop.EventApprovalAsked})
	require.NoError(t, err)
	body, err := wire.Encode(&wire.Frame{CallID: turn, Seq: 1, Kind: wire.FrameEvent, WorkerID: "w", Attempt: 1, Data: question})
	require.NoError(t, err)
	worker := r.Connect()
	require.NoError(t, worker.Publish(wire.OutputSubject(r.Name, session, turn), body))
	require.ErrorContains(t, <-faults, "events of turns do not come as output")
	require.NoError(t, worker.Publish(wire.LiveSubject(r.Name, session, "another"), body))
	require.ErrorContains(t, <-faults, "it is of call")
	require.NoError(t, worker.Publish(wire.LiveSubject(r.Name, session, turn), body))
	require.Equal(t, wire.FrameEvent, (<-frames).Kind)
	require.Empty(t, frames)
}
