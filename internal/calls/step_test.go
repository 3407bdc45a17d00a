package calls_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Thousands of calls are dispatched at once, and each result is found, also one that NATS lost.
func TestDispatch_ThousandsAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := newCalls(2000)
	for i := 0; i < len(sent); i += 7 { // stored before anybody listens
		result := wire.NewResult(&sent[i], protocol.StatusOK, nil)
		body, err := wire.EncodeResult(&result)
		require.NoError(t, err)
		_, err = r.JS.Publish(t.Context(), wire.ResultSubject(r.Name, sent[i].SessionID, sent[i].ID), body)
		require.NoError(t, err)
	}
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	o := r.mustDispatch(t.Context(), sent)
	for i := range sent {
		requireDone(t, o, sent[i], protocol.StatusOK, "")
	}
}

func TestDispatch_TellsUpdatesInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc := r.Connect()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Tracer: provider.Tracer("test")})
	running := make(chan struct{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		body, err := wire.Encode(&wire.Frame{CallID: run.Call.ID, Seq: 1, Kind: wire.FrameStarted, WorkerID: "w", Attempt: 1})
		if err == nil {
			err = nc.Publish(wire.OutputSubject(r.Name, run.Call.SessionID, run.Call.ID), body)
		}
		if err != nil {
			t.Error(err)
		}
		<-running
		return succeed(run)
	})
	sent := newCalls(1)
	var updates []loop.Update
	err := r.dispatcher.Dispatch(t.Context(), sent, func(u loop.Update) {
		updates = append(updates, u)
		if u.State == loop.StateRunning {
			close(running)
		}
	})
	require.NoError(t, err)
	require.Len(t, updates, 3)
	require.Equal(t, loop.Update{CallID: sent[0].ID, State: loop.StateQueued}, updates[0])
	require.Equal(t, loop.Update{CallID: sent[0].ID, State: loop.StateRunning, WorkerID: "w", Attempt: 1}, updates[1])
	require.Equal(t, loop.StateDone, updates[2].State)
	require.Equal(t, protocol.StatusOK, updates[2].Result.Status)

	for _, span := range spans.Ended() {
		if span.Name() == telemetry.SpanDispatch(sent[0].Tool) {
			require.Len(t, span.Events(), 1)
			require.Equal(t, telemetry.EventStarted, span.Events()[0].Name)
			require.Equal(t, []attribute.KeyValue{telemetry.KeyWorkerID.String("w"), telemetry.KeyAttempt.Int(1)}, span.Events()[0].Attributes)
		}
	}
}

func TestDispatch_NothingToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	o := r.mustDispatch(t.Context(), nil)
	require.Empty(t, o.updates)
}

func TestDispatch_AStepOf64Calls(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string][]protocol.Call{
		"lanes of their own":             newCalls(64),
		"one lane, side by side":         sameLane(newCalls(64), protocol.Shared),
		"one lane, one after another":    sameLane(newCalls(64), protocol.Exclusive),
		"one lane, the first shared":     append(sameLane(newCalls(1), protocol.Shared), newCalls(63)...),
		"as many lanes as there are few": sameLane(newCalls(2), protocol.Exclusive),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, natsio.Topology{})
			var executed atomic.Int64
			r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
				executed.Add(1)
				return succeed(run)
			})
			for i := range sent { // all of one session
				sent[i].SessionID = sent[0].SessionID
			}
			o := r.mustDispatch(t.Context(), sent)
			for _, call := range sent {
				requireDone(t, o, call, protocol.StatusOK, "")
				states, _ := o.of(call.ID)
				require.Equal(t, loop.StateQueued, states[0])
			}
			require.EqualValues(t, len(sent), executed.Load())
		})
	}
}

func TestDispatch_DetachedReturnsAtOnceAndCancelsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	started, release := make(chan struct{}), make(chan struct{})
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(started)
		select {
		case <-release:
			return succeed(run)
		case <-ctx.Done():
			t.Error("cancelled")
			return wire.NewResult(run.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "cancelled"))
		}
	})
	ctx, detach := context.WithCancelCause(t.Context())
	go func() {
		<-started
		detach(fmt.Errorf("draining: %w", loop.ErrDetached))
	}()
	sent := newCalls(1)
	o, err := r.dispatch(ctx, sent)
	require.ErrorIs(t, err, loop.ErrDetached)
	_, result := o.of(sent[0].ID)
	require.Nil(t, result)

	again := sent[0]
	again.Again = true
	close(release)
	o = r.mustDispatch(t.Context(), []protocol.Call{again})
	requireDone(t, o, again, protocol.StatusOK, "")
}

// A call that was not sent yet when the process left the session has no result: the next one sends
// it.
func TestDispatch_DetachedBeforeItSendsHasNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	ctx, detach := context.WithCancelCause(t.Context())
	leaving := onPublish(func() { detach(fmt.Errorf("the lease is lost: %w", loop.ErrDetached)) })
	dispatcher := r.dispatcher
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Tracer: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(leaving)).Tracer("test")})
	sent := newCalls(3)
	o, err := r.dispatch(ctx, sent)
	require.ErrorIs(t, err, loop.ErrDetached)
	for _, call := range sent {
		_, result := o.of(call.ID)
		require.Nil(t, result)
	}
	r.dispatcher = dispatcher
	for i := range sent {
		sent[i].Again = true
	}
	o = r.mustDispatch(t.Context(), sent)
	for _, call := range sent {
		requireDone(t, o, call, protocol.StatusOK, "")
	}
}

// onPublish is called before a call is sent.
type onPublish func()

func (f onPublish) OnStart(_ context.Context, span sdktrace.ReadWriteSpan) {
	if span.Name() == telemetry.SpanPublish {
		f()
	}
}
func (onPublish) OnEnd(sdktrace.ReadOnlySpan)      {}
func (onPublish) Shutdown(context.Context) error   { return nil }
func (onPublish) ForceFlush(context.Context) error { return nil }

// Two pools may have calls of one lane; each has a ready message of its own.
func TestDispatch_EachPoolHasAReadyMessageOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := sameLane(newCalls(2), protocol.Exclusive)
	sent[1].Pool = "other"
	ctx, detach := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := r.dispatch(ctx, sent)
		done <- err
	}()
	stream, err := r.JS.Stream(t.Context(), wire.CallsStream(r.Name))
	require.NoError(t, err)
	for _, call := range sent {
		ready := func() (msg *jetstream.RawStreamMsg) {
			require.Eventually(t, func() bool {
				msg, err = stream.GetLastMsgForSubject(t.Context(), wire.ReadySubject(r.Name, call.Pool, wire.HashLane(call.Lane())))
				return err == nil
			}, patience, time.Millisecond, "pool %s is not told", call.Pool)
			return msg
		}
		first := ready()
		require.NotEmpty(t, first.Data, "the call itself makes its lane ready")
	}
	detach(loop.ErrDetached)
	require.ErrorIs(t, <-done, loop.ErrDetached)
}

func TestDispatch_EndOfContextCancelsAndTellsResults(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := newCalls(3)
	started := make(chan struct{})
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID == sent[0].ID {
			return succeed(run)
		}
		close(started) // of the second; the third waits behind it
		<-ctx.Done()
		status, fault, _ := lane.Interrupted(ctx)
		return wire.NewResult(run.Call, status, fault)
	})
	sameLane(sent[1:], protocol.Exclusive)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o, first := &told{t: t}, make(chan struct{})
	go func() {
		<-started
		<-first
		cancel()
	}()
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{CancelWait: patience})
	require.NoError(t, r.dispatcher.Dispatch(ctx, sent, func(u loop.Update) {
		o.observe(u)
		if u.CallID == sent[0].ID && u.Result != nil {
			close(first)
		}
	}))
	requireDone(t, o, sent[0], protocol.StatusOK, "")
	running := requireDone(t, o, sent[1], protocol.StatusCancelled, protocol.CodeCancelled)
	require.Equal(t, 1, running.Attempt)
	waiting := requireDone(t, o, sent[2], protocol.StatusCancelled, protocol.CodeCancelled)
	require.Zero(t, waiting.Attempt, "it never started")
}

// TestDispatch_ADeadlineHasOneOutcome: the caller's time ends a moment before that of the call,
// which begins when it is issued. The call ends by its deadline, and not by a cancel.
func TestDispatch_ADeadlineHasOneOutcome(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		<-ctx.Done()
		status, fault, _ := lane.Interrupted(ctx)
		return wire.NewResult(run.Call, status, fault)
	})
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{CancelWait: patience})
	for life, ended := 300*time.Millisecond, 0; ended < 4; {
		sent := newCalls(1)
		sent[0].Deadline = sent[0].IssuedAt.Add(life + 20*time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), life)
		o := &told{t: t}
		require.NoError(t, r.dispatcher.Dispatch(ctx, sent, o.observe))
		cancel()
		if _, result := o.of(sent[0].ID); result != nil && result.Attempt == 0 && life < patience {
			life *= 4 // a busy machine has not started it
			continue
		}
		requireDone(t, o, sent[0], protocol.StatusTimeout, protocol.CodeDeadline)
		ended++
	}
}

func TestDispatch_CancelledWithoutAWorkerNeverRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := append(newCalls(1), sameLane(newCalls(2), protocol.Exclusive)...)
	for i := range sent {
		sent[i].SessionID = sent[0].SessionID
		sent[i].ID = wire.RandomCallID()
	}
	o, err := r.dispatchAndCancel(sent)
	require.NoError(t, err)
	for _, call := range sent {
		result := requireDone(t, o, call, protocol.StatusOutcomeUnknown, protocol.CodeNoWorker)
		require.Contains(t, result.Error.Message, "pool default has no worker")
	}
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		t.Errorf("call %s runs", run.Call.ID)
		return succeed(run)
	})
	r.requireQuiet()
	publisher, err := lane.NewPublisher(t.Context(), r.NC, r.Name)
	require.NoError(t, err)
	for _, call := range sent {
		result, err := publisher.Result(t.Context(), call.SessionID, call.ID)
		require.NoError(t, err)
		require.Equal(t, protocol.StatusCancelled, result.Status)
	}
}

// TestDispatch_AContextThatHasEndedCancelsWhatIsThere: a turn may be taken over when it is stopped
// already.
func TestDispatch_AContextThatHasEndedCancelsWhatIsThere(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	started := make(chan struct{})
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		close(started)
		<-ctx.Done()
		return wire.NewResult(run.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "stopped"))
	})
	sent := newCalls(1)
	ctx, detach := context.WithCancelCause(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := r.dispatch(ctx, sent)
		left <- err
	}()
	<-started
	detach(loop.ErrDetached)
	require.ErrorIs(t, <-left, loop.ErrDetached)
	_, err := r.dispatch(ctx, sent)
	require.ErrorIs(t, err, loop.ErrDetached)

	stopped, stop := context.WithCancel(t.Context())
	stop()
	r.dispatcher = r.newDispatcher(r.Connect(), calls.Options{CancelWait: patience}) // as another process has one
	sent[0].Again = true
	o := r.mustDispatch(stopped, sent)
	requireDone(t, o, sent[0], protocol.StatusCancelled, protocol.CodeCancelled)
	r.requireQuiet()
}

// TestDispatch_ACancelledTurnHasTimeToCancelItsCalls: it waits as long for a worker's answer as
// others wait for its own.
func TestDispatch_ACancelledTurnHasTimeToCancelItsCalls(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{CancelWait: 3 * time.Second})
	turn := newCalls(1)[0]
	turn.Pool = protocol.SessionPool
	started := make(chan struct{})
	r.holdPool(protocol.SessionPool, func(ctx context.Context, run *lane.Run) protocol.Result {
		close(started)
		inner := newCalls(1) // no worker takes it
		if _, err := r.dispatch(ctx, inner); err != nil {
			t.Errorf("dispatch: %v", err)
		}
		return wire.NewResult(run.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "interrupted"))
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-started
		cancel()
	}()
	o := r.mustDispatch(ctx, []protocol.Call{turn})
	requireDone(t, o, turn, protocol.StatusCancelled, protocol.CodeCancelled)
}

func TestDispatch_SaysWhenACancelHasNoRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{MaxCalls: 1})
	sent := newCalls(1)
	o, err := r.dispatchAndCancel(sent)
	require.NoError(t, err)
	result := requireDone(t, o, sent[0], protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown)
	require.Contains(t, result.Error.Message, "did not take a request to cancel")
}

func TestDispatch_SaysWhyThereIsNoResult(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	workers := r.Connect()
	for _, subject := range []string{wire.WhoSubject(r.Name, "busy"), wire.AskAllSubject(r.Name, "serving")} { // as workers do, and coordinators
		_, err := workers.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond(nil) })
		require.NoError(t, err)
	}
	require.NoError(t, workers.Flush())
	sent := newCalls(4)
	sent[1].Pool, sent[2].Pool = "busy", "serving"
	sent[3].Again = true
	running := newCalls(1)[0] // by a worker that says nothing any more
	running.SessionID = sent[0].SessionID
	sent = append(sent, running)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	queued := 0
	o := &told{t: t}
	require.NoError(t, r.dispatcher.Dispatch(ctx, sent, func(u loop.Update) {
		o.observe(u)
		switch u.State {
		case loop.StateQueued:
			if queued++; queued == len(sent) {
				body, err := wire.Encode(&wire.Frame{CallID: running.ID, Seq: 1, Kind: wire.FrameStarted, WorkerID: "w", Attempt: 1})
				require.NoError(t, err)
				require.NoError(t, workers.Publish(wire.OutputSubject(r.Name, running.SessionID, running.ID), body))
			}
		case loop.StateRunning:
			cancel()
		case loop.StateDone:
		}
	}))
	for i, want := range []struct {
		code protocol.Code
		says string
	}{
		{protocol.CodeNoWorker, "pool default has no worker"},
		{protocol.CodeNoWorker, "no worker of pool busy was seen to take the call"},
		{protocol.CodeNoWorker, "no worker of pool serving was seen to take the call"},
		{protocol.CodeOutcomeUnknown, "it may have had effects"},
		{protocol.CodeOutcomeUnknown, "the worker that ran the call did not answer in time"},
	} {
		result := requireDone(t, o, sent[i], protocol.StatusOutcomeUnknown, want.code)
		require.Contains(t, result.Error.Message, want.says)
	}
}

// Results go when there is no room for them. Whoever waits has heard them when they were stored.
func TestDispatch_AResultThatIsPushedOutIsHeard(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{Storage: natsio.Storage{ResultBytes: 1 << 10}})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	sent := newCalls(64)
	for i := range sent {
		sent[i].SessionID = sent[0].SessionID
	}
	o := r.mustDispatch(t.Context(), sent)
	for _, call := range sent {
		requireDone(t, o, call, protocol.StatusOK, "")
	}
	stream, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	require.Less(t, stream.CachedInfo().State.Msgs, uint64(len(sent)/2))
}

// A result says that its call has run for as long as it is kept.
func TestDispatch_ACallWhoseResultIsGoneRunsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{Storage: natsio.Storage{ResultAge: 2 * time.Second}})
	var executed atomic.Int64
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		executed.Add(1)
		return succeed(run)
	})
	sent := newCalls(1)
	r.mustDispatch(t.Context(), sent)
	stream, err := r.JS.Stream(t.Context(), wire.ResultsStream(r.Name))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Msgs == 0
	}, patience, 50*time.Millisecond)
	sent[0].Again = true
	r.mustDispatch(t.Context(), sent)
	require.EqualValues(t, 2, executed.Load())
}
