package calls_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/telemetrytest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server that takes what is sent, and whose answers are lost, may have the call.
func TestCallWith_WhatMayHaveBeenSentIsToldAsSuch(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	call := newCalls(2)
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	_, err := d.CallWith(t.Context(), &call[0], calls.CallOptions{Brief: true}) // so that the session is heard
	require.NoError(t, err)
	link.Deafen()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = d.CallWith(ctx, &call[1], calls.CallOptions{Brief: true})
	require.ErrorIs(t, err, calls.ErrUnreachable)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, lane.ErrNotSent)
	link.Cut()
	d.Close()
}

// A batch whose context has ended sends nothing either, and says so of each call.
func TestDispatch_AContextThatHasEndedSendsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	calls := newCalls(2)
	o := r.mustDispatch(ctx, calls)
	for _, call := range calls {
		result := requireDone(t, o, call, protocol.StatusCancelled, protocol.CodeCancelled)
		require.Contains(t, result.Error.Message, "before it was sent")
	}
	r.requireQuiet()
	_, err := r.dispatcher.Call(ctx, &calls[0])
	require.ErrorIs(t, err, lane.ErrNotSent)
}

// A call whose context ends is not waited for, however long its worker takes.
func TestCallWith_DoesNotWaitForTheOutcomeOfACancel(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	d := r.newDispatcher(r.NC, calls.Options{CancelWait: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	goOn := make(chan struct{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		cancel()
		<-goOn
		return succeed(run)
	})
	returned := make(chan *protocol.Result, 1)
	go func() {
		result, err := d.CallWith(ctx, &newCalls(1)[0], calls.CallOptions{Brief: true})
		if err != nil {
			t.Error(err)
		}
		returned <- result
	}()
	select {
	case result := <-returned:
		require.Equal(t, protocol.StatusOutcomeUnknown, result.Status)
	case <-time.After(patience):
		t.Error("it waits")
	}
	close(goOn)
	d.Close()
}

// A handle that another Send holds is its own: the end of the first context does not stop the call,
// that of the second one does. A question without answer is repeated, and so is the end.
func TestSend_HoldsCallsThatWereSentBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	calls := newCalls(3)
	for i := range calls {
		calls[i].Payload = protocol.MCPCall{Server: protocol.MCPServer{Name: "s", Command: "s"}, Tool: "t", Arguments: json.RawMessage(`{}`)}
	}
	answered := make(chan struct{})
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		subject := wire.QuestionSubject(r.Name, run.Call.Pool, run.Call.SessionID, run.Call.ID)
		question, err := wire.Encode(&protocol.Question{ID: "q", Message: "Which?"})
		if err == nil {
			err = r.NC.Publish(subject, question)
		}
		if err != nil {
			t.Error(err)
		}
		select {
		case <-answered:
			return succeed(run)
		case <-ctx.Done():
			return wire.NewResult(run.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "stopped"))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := make(chan protocol.CallID, 2*len(calls))
	questions := func(o *told) func(loop.Update) {
		return func(u loop.Update) {
			if o.observe(u); u.Question != nil {
				asked <- u.CallID
			}
		}
	}
	first, second := &told{t: t}, &told{t: t}
	sent := r.dispatcher.Send(ctx, calls, questions(first))
	for range calls {
		<-asked
	}
	stopped, stop := context.WithCancel(t.Context())
	held := r.dispatcher.Send(stopped, nil, questions(second), sent[1])
	require.Len(t, held, 1)
	require.Equal(t, calls[1].ID, <-asked, "it is not answered")
	<-sent[1].Done()
	_, err := sent[1].Result()
	require.ErrorIs(t, err, loop.ErrDetached)
	sent[1].Detach() // of one that another Send holds: no effect
	left := r.dispatcher.Send(t.Context(), nil, nil, sent[2])
	left[0].Detach()
	<-left[0].Done()
	_, err = left[0].Result()
	require.ErrorIs(t, err, loop.ErrDetached)

	cancel()
	<-sent[0].Done()
	result, err := sent[0].Result()
	require.NoError(t, err)
	require.Equal(t, protocol.StatusCancelled, result.Status)
	again := &told{t: t}
	ended := r.dispatcher.Send(t.Context(), nil, again.observe, sent[0])
	<-ended[0].Done()
	require.Equal(t, result, requireDone(t, again, calls[0], protocol.StatusCancelled, protocol.CodeCancelled))

	select {
	case <-held[0].Done():
		t.Error("the end of the first context stops it")
	default:
	}
	stop()
	<-held[0].Done()
	requireDone(t, second, calls[1], protocol.StatusCancelled, protocol.CodeCancelled)
	states, _ := first.of(calls[1].ID)
	require.NotContains(t, states, loop.StateDone)
	close(answered) // the call that was left runs to its end
	r.requireQuiet()
	stored, err := r.dispatcher.Result(t.Context(), &calls[2])
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, stored.Status)
}

// A call that is still being sent when another Send holds it ends with the context of that one: the
// first context would have it sent for ever.
func TestSend_HoldsACallThatIsBeingSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{CancelWait: 100 * time.Millisecond})
	call := newCalls(2)
	arrived := make(chan protocol.CallID, len(call))
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		arrived <- run.Call.ID
		return succeed(run)
	})
	_, err := d.Call(t.Context(), &call[0]) // so that the session is heard
	require.NoError(t, err)
	require.Equal(t, call[0].ID, <-arrived)
	link.Deafen()
	ctx, cancel := context.WithCancel(t.Context())
	first := d.Send(context.WithoutCancel(ctx), call[1:], nil)
	require.Equal(t, call[1].ID, <-arrived)
	second := d.Send(ctx, nil, nil, first...)
	cancel()
	select {
	case <-second[0].Done():
		result, err := second[0].Result()
		require.NoError(t, err)
		require.Equal(t, protocol.StatusOutcomeUnknown, result.Status)
	case <-time.After(patience):
		t.Error("it is being sent")
	}
	link.Cut()
	d.Close()
}

const (
	pool     = "toolfleet.pool=default"
	publish  = "messaging.operation.name=publish,messaging.system=nats," + pool
	testTool = "gen_ai.tool.name=test," + pool
)

func TestMetrics_TellWhatCameOfCalls(t *testing.T) {
	t.Parallel()
	const room = 2
	r := newRig(t, natsio.Topology{MaxCalls: room})
	m := telemetrytest.NewMeter(t)
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Meter: m})
	calls := newCalls(3)
	rejected := make(chan struct{}, len(calls))
	done := make(chan error, 1)
	go func() {
		done <- r.dispatcher.Dispatch(t.Context(), calls, func(u loop.Update) {
			if u.Result != nil && u.Result.Status == protocol.StatusRejected {
				rejected <- struct{}{}
			}
		})
	}()
	<-rejected
	require.Equal(t, map[string]int64{pool: room}, m.Read(t, telemetry.MetricCallActive))
	var failed atomic.Bool // which calls were accepted is a matter of chance
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		if failed.CompareAndSwap(false, true) {
			return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeNotFound, "not there"))
		}
		return succeed(run)
	})
	require.NoError(t, <-done)
	require.Equal(t, map[string]int64{publish: 2, "error.type=fleet_full," + publish: 1},
		m.Read(t, telemetry.MetricSentMessages))
	require.Equal(t, map[string]int64{
		testTool + ",toolfleet.status=ok":                                  1,
		"error.type=not_found," + testTool + ",toolfleet.status=failed":    1,
		"error.type=fleet_full," + testTool + ",toolfleet.status=rejected": 1,
	}, m.Read(t, telemetry.MetricCallDuration))
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricCallActive))
}

// Metrics name a bounded number of tenants.
func TestMetrics_NameTheFirstTenants(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	m := telemetrytest.NewMeter(t)
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Meter: m})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	calls := newCalls(25)
	for i := range calls {
		calls[i].Tenant = protocol.Tenant(fmt.Sprint("t", i))
	}
	r.mustDispatch(t.Context(), calls)
	sent := m.Read(t, telemetry.MetricSentMessages)
	require.Len(t, sent, 21)
	require.EqualValues(t, 5, sent[publish+",toolfleet.tenant=other"])
}

func TestMetrics_TellWhatWasLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	m := telemetrytest.NewMeter(t)
	nc := r.Connect()
	r.dispatcher = r.newDispatcher(nc, calls.Options{Meter: m})
	ctx, leave := context.WithCancelCause(t.Context())
	queued := make(chan struct{}, 2)
	done := make(chan error, 1)
	go func() {
		done <- r.dispatcher.Dispatch(ctx, newCalls(2), func(loop.Update) { queued <- struct{}{} })
	}()
	<-queued
	<-queued
	leave(loop.ErrDetached)
	require.ErrorIs(t, <-done, loop.ErrDetached)
	nc.Close()
	_, err := r.dispatch(t.Context(), newCalls(3))
	require.Error(t, err)
	require.Equal(t, map[string]int64{pool: 0}, m.Read(t, telemetry.MetricCallActive))
	require.Empty(t, m.Read(t, telemetry.MetricCallDuration))
}

func TestDispatch_Spans(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	t.Cleanup(func() { require.NoError(t, provider.Shutdown(context.Background())) })
	r.dispatcher = r.newDispatcher(r.NC, calls.Options{Tracer: provider.Tracer("test")})
	calls := newCalls(3)
	var mu sync.Mutex
	parents := map[protocol.CallID]trace.SpanID{} // as a worker sees them
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		mu.Lock()
		parents[run.Call.ID] = trace.SpanContextFromContext(telemetry.Extract(context.Background(), run.Header)).SpanID()
		mu.Unlock()
		if run.Call.ID == calls[1].ID {
			return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeNotFound, "not there"))
		}
		return succeed(run)
	})
	calls[2].Payload = tooLarge()
	ctx, turn := provider.Tracer("test").Start(t.Context(), "turn")
	r.mustDispatch(ctx, calls)
	turn.End()

	dispatches := map[string]sdktrace.ReadOnlySpan{} // by call
	publishes := map[trace.SpanID]sdktrace.ReadOnlySpan{}
	for _, span := range recorder.Ended() {
		require.Equal(t, turn.SpanContext().TraceID(), span.SpanContext().TraceID())
		switch span.Name() {
		case telemetry.SpanDispatch(calls[0].Tool):
			require.Equal(t, trace.SpanKindInternal, span.SpanKind())
			require.Equal(t, turn.SpanContext().SpanID(), span.Parent().SpanID())
			for _, a := range span.Attributes() {
				if a.Key == telemetry.KeyCallID {
					dispatches[a.Value.AsString()] = span
				}
			}
		case telemetry.SpanPublish:
			require.Equal(t, trace.SpanKindProducer, span.SpanKind())
			require.Subset(t, span.Attributes(), telemetry.Published(wire.CallsStream(r.Name)))
			publishes[span.Parent().SpanID()] = span
		}
	}
	require.Len(t, dispatches, 3)
	for i, want := range []struct{ status, fault string }{{"ok", ""}, {"failed", "not_found"}, {"rejected", "payload_too_large"}} {
		span := dispatches[string(calls[i].ID)]
		require.Contains(t, span.Attributes(), telemetry.KeyStatus.String(want.status))
		publish := publishes[span.SpanContext().SpanID()]
		require.NotNil(t, publish)
		for _, a := range span.Attributes() {
			require.NotEmpty(t, a.Value.String(), a.Key)
		}
		if i < 2 {
			require.Equal(t, publish.SpanContext().SpanID(), parents[calls[i].ID], "the worker's parent is the publish span")
		} else {
			require.Equal(t, codes.Error, publish.Status().Code)
		}
		if want.fault == "" {
			require.Equal(t, codes.Unset, span.Status().Code)
			continue
		}
		require.Equal(t, codes.Error, span.Status().Code)
		require.Contains(t, span.Attributes(), telemetry.KeyErrorType.String(want.fault))
		require.Equal(t, want.fault, span.Status().Description, "not a message, which may quote arguments")
	}
}

// The end of the context with which a call was sent does not end its sending once another Send
// holds it: it is sent once.
func TestSend_ACallThatAnotherOneHoldsIsSentOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	call := newCalls(1)
	ran := make(chan *protocol.Call, 2)
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call
		return succeed(run)
	})
	release := link.HoldWrites(func(subject string) bool {
		return subject == wire.ReadySubject(r.Name, call[0].Pool, wire.HashLane(call[0].Lane()))
	})
	ctx, promote := context.WithCancelCause(t.Context())
	first := d.Send(ctx, call, nil)
	require.Eventually(t, func() bool { return link.Held() == 1 }, patience, time.Millisecond)
	o := &told{t: t}
	second := d.Send(t.Context(), nil, o.observe, first...)
	promote(loop.ErrDetached)
	<-first[0].Done()
	select {
	case <-second[0].Done():
		t.Error("its sending was ended")
	case <-time.After(100 * time.Millisecond):
	}
	release()
	<-second[0].Done()
	requireDone(t, o, call[0], protocol.StatusOK, "")
	require.False(t, (<-ran).Again, "it was not sent a second time")
	require.Empty(t, ran)
	r.requireQuiet()
}
