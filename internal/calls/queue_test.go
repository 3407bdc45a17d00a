package calls_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// large is a payload that no message can carry.
func large(n int) protocol.Payload { return protocol.CommandRun{Command: strings.Repeat("x", n)} }

// Law: whichever way calls of one lane are sent, none overtakes an earlier one of its process.
func TestQueue_NoWayOvertakesAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	var mu sync.Mutex
	var ran []int
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, run.Call.Index)
		return succeed(run)
	})
	sent := sameLane(newCalls(24), protocol.Exclusive)
	var last *calls.Future
	for i := 0; i < len(sent); i += 6 {
		sent[i].Payload = large(9 << 20) // it takes long to send
		r.dispatcher.Go(t.Context(), &sent[i])
		r.dispatcher.Go(t.Context(), &sent[i+1])
		require.NoError(t, r.dispatcher.Submit(t.Context(), &sent[i+2]))
		r.dispatcher.Go(t.Context(), &sent[i+3])
		_, err := r.dispatcher.Promptly(t.Context(), &sent[i+4], nil)
		require.NoError(t, err)
		last = r.dispatcher.Go(t.Context(), &sent[i+5])
	}
	<-last.Done()
	require.True(t, slices.IsSorted(ran), ran)
	require.Len(t, ran, len(sent))

	behind := sameLane(newCalls(2), protocol.Exclusive)
	behind[0].Payload = large(9 << 20)
	first := r.dispatcher.Go(t.Context(), &behind[0])
	_, err := r.dispatch(t.Context(), behind[1:])
	require.NoError(t, err)
	select {
	case <-first.Done():
	default:
		t.Error("the step overtook the call before it")
	}
}

// Law: a call is not held up by those of other lanes that their sender uploads.
func TestQueue_UploadsOfOtherLanesHoldUpNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	release := link.HoldWrites(func(subject string) bool { return strings.Contains(subject, wire.BlobsBucket(r.Name)) })
	defer release()
	uploads := newCalls(20)
	sent := make([]*calls.Future, 0, len(uploads))
	for i := range uploads {
		uploads[i].Payload = large(9 << 20)
		sent = append(sent, d.Go(t.Context(), &uploads[i]))
	}
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	small := newCalls(3)
	one := d.Go(t.Context(), &small[0])
	require.NoError(t, d.Submit(t.Context(), &small[1]))
	_, err := d.Promptly(t.Context(), &small[2], nil)
	require.NoError(t, err)
	<-one.Done()
	ctx, cancel := context.WithCancel(t.Context())
	other := newCalls(1)
	waits := d.Go(ctx, &other[0])
	cancel()
	<-waits.Done()
	release()
	for _, f := range append(sent, one) {
		<-f.Done()
		result, err := f.Result()
		require.NoError(t, err)
		require.Equal(t, protocol.StatusOK, result.Status)
	}
}

// Law: a sender that is busy with one lane does not count as one that could serve another.
func TestQueue_ABusySenderHoldsUpNoOtherLane(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	sent := newCalls(2)
	warm := newCalls(1)
	<-d.Go(t.Context(), &warm[0]).Done()
	release := link.HoldWrites(func(subject string) bool { return strings.HasSuffix(subject, "."+string(sent[0].ID)) })
	defer release()
	held := d.Go(t.Context(), &sent[0])
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	<-d.Go(t.Context(), &sent[1]).Done() // it ends while the other one is not sent
	release()
	<-held.Done()
	_, err := held.Result()
	require.NoError(t, err)
}

// Law: what several callers wait for does not end with the context of one of them.
func TestQueue_OneContextEndsNoOtherCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	sent := newCalls(6)
	link.Deafen()
	first, cancel := context.WithCancel(t.Context())
	ended := d.Go(first, &sent[0])
	alone := make(chan error, 1)
	go func() { alone <- d.Dispatch(first, sent[5:], func(loop.Update) {}) }()
	var others []*calls.Future
	for i := range sent[1:5] {
		others = append(others, d.Go(t.Context(), &sent[i+1]))
	}
	cancel()
	<-ended.Done()
	_, err := ended.Result()
	require.ErrorIs(t, err, context.Canceled)
	t.Log("the other one ended:", <-alone)
	link.Mend()
	link.Cut()
	link.Mend()
	for _, f := range others {
		<-f.Done()
		result, err := f.Result()
		require.NoError(t, err)
		require.Equal(t, protocol.StatusOK, result.Status)
	}
}

// Law: a call that an earlier attempt may have sent is not said to be unsent, whatever becomes of
// this attempt; the end of its context cancels it.
func TestQueue_WhatMayBeStoredIsNotSaidToBeUnsent(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := sameLane(newCalls(4), protocol.Exclusive)
	for i := range sent[:2] {
		require.NoError(t, r.dispatcher.Submit(t.Context(), &sent[i]))
		sent[i].Again = true
	}
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{CancelWait: patience})
	release := link.HoldWrites(func(subject string) bool { return strings.HasSuffix(subject, "."+string(sent[2].ID)) })
	defer release()
	d.Go(t.Context(), &sent[2]) // it is being sent for long
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	stopped, open, unsent := d.Go(ctx, &sent[0]), d.Go(t.Context(), &sent[1]), d.Go(t.Context(), &sent[3])
	cancel()
	closed := make(chan struct{})
	defer close(closed)
	r.hold(func(ctx context.Context, run *lane.Run) protocol.Result {
		if run.Call.ID == sent[1].ID {
			select {
			case <-closed:
			case <-ctx.Done():
			}
		}
		return succeed(run)
	})
	<-stopped.Done()
	result, err := stopped.Result()
	require.NoError(t, err)
	require.NotEmpty(t, result.WorkerID, "it has the result of the call that was stored")
	d.Close()
	_, err = open.Result()
	require.ErrorIs(t, err, calls.ErrClosed)
	require.NotErrorIs(t, err, lane.ErrNotSent)
	_, err = unsent.Result()
	require.ErrorIs(t, err, lane.ErrNotSent)
}

// Law: a full lane refuses a submitted call at once, also behind calls that wait for room; what
// waits there can be cancelled, and ends when its own time does.
func TestQueue_BehindAFullLane(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := sameLane(newCalls(7), protocol.Exclusive)
	r.setLimit(limits.Rule{Lane: "account/*", Waiting: 1})
	r.publish(&sent[0]) // the ready message
	r.publish(&sent[1])
	waits := r.dispatcher.Go(t.Context(), &sent[2])
	sent[3].Deadline = sent[3].IssuedAt.Add(2 * time.Second)
	due := r.dispatcher.Go(t.Context(), &sent[3])
	cancelled := r.dispatcher.Go(t.Context(), &sent[4])
	require.NoError(t, cancelled.Cancel(t.Context()))
	require.ErrorIs(t, r.dispatcher.Submit(t.Context(), &sent[5]), lane.ErrBusy)
	<-due.Done()
	result, err := due.Result()
	require.NoError(t, err)
	require.Equal(t, protocol.CodeBusy, result.Error.Code)
	sent[6].QueueTimeout = 200
	result, err = r.dispatcher.Promptly(t.Context(), &sent[6], nil)
	require.NoError(t, err)
	require.Equal(t, protocol.CodeBusy, result.Error.Code, "its time ends while it waits for its turn")
	result, err = cancelled.Result()
	require.NoError(t, err)
	require.Equal(t, protocol.StatusCancelled, result.Status)
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	<-waits.Done()
	result, err = waits.Result()
	require.NoError(t, err)
	require.Equal(t, protocol.StatusOK, result.Status)
}

// Law: large results hold up the results of no other call, neither as they arrive nor when they are
// looked up.
func TestResults_LargeOnesHoldUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.MaxPayload = 128 << 10
	const large = 200 << 10
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		result := succeed(run)
		if run.Call.Index < 10 {
			result.Value = protocol.CommandRunResult{Execution: protocol.Execution{Stdout: protocol.Bytes(strings.Repeat("x", large))}}
		}
		return result
	})
	for _, lose := range []bool{false, true} {
		t.Run(fmt.Sprintf("messages lost: %t", lose), func(t *testing.T) {
			t.Parallel()
			nc, link := r.ConnectVia()
			d := r.newDispatcher(nc, calls.Options{})
			defer d.Close()
			chunks := func(subject string) bool { return strings.Contains(subject, wire.BlobsBucket(r.Name)) }
			release := link.HoldWrites(chunks)
			defer release()
			if lose {
				link.LoseMessages(func(subject string) bool { return strings.HasPrefix(subject, string(r.Name)+".done.") })
			}
			sent := newCalls(11)
			var futures []*calls.Future
			for i := range sent[:10] {
				futures = append(futures, d.Go(t.Context(), &sent[i]))
			}
			require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
			small := d.Go(t.Context(), &sent[10])
			<-small.Done()
			release()
			for _, f := range futures {
				<-f.Done()
				result, err := f.Result()
				require.NoError(t, err)
				value, _ := result.Value.(protocol.CommandRunResult)
				require.Len(t, value.Stdout, large)
			}
		})
	}
}
