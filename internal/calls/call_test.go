package calls_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
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
	o, err := r.dispatch(ctx, calls)
	require.NoError(t, err)
	for _, call := range calls {
		result := requireDone(t, o, call, protocol.StatusCancelled, protocol.CodeCancelled)
		require.Contains(t, result.Error.Message, "before it was sent")
	}
	r.requireQuiet()
	_, err = r.dispatcher.Call(ctx, &calls[0])
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
