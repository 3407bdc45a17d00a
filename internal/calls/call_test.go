package calls_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
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
		question, err := wire.EncodeQuestion(protocol.Question{ID: "q", Message: "Which?"})
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
