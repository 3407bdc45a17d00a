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
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// smallMessages has the clients that connect from now on believe in messages so small that a
// payload of [large] needs several.
func (r *rig) smallMessages() { r.MaxPayload = 128 << 10 }

// large is a payload that no message of such a client can carry.
func large() protocol.Payload { return protocol.CommandRun{Command: strings.Repeat("x", 400<<10)} }

// Law: whichever way calls of one lane are sent, none overtakes an earlier one of its process.
func TestQueue_NoWayOvertakesAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.smallMessages()
	nc, _ := r.ConnectVia()
	r.dispatcher = r.newDispatcher(nc, calls.Options{})
	var mu sync.Mutex
	var ran []int
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		mu.Lock()
		defer mu.Unlock()
		ran = append(ran, run.Call.Index)
		return succeed(run)
	})
	sent := sameLane(newCalls(24), protocol.Exclusive)
	var last *calls.Handle
	for i := 0; i < len(sent); i += 6 {
		sent[i].Payload = large() // it takes long to send
		r.dispatcher.Go(t.Context(), &sent[i])
		r.dispatcher.Go(t.Context(), &sent[i+1])
		require.NoError(t, r.dispatcher.Submit(t.Context(), &sent[i+2]))
		r.dispatcher.Go(t.Context(), &sent[i+3])
		_, err := r.dispatcher.CallWith(t.Context(), &sent[i+4], calls.CallOptions{Brief: true})
		require.NoError(t, err)
		last = r.dispatcher.Go(t.Context(), &sent[i+5])
	}
	<-last.Done()
	require.True(t, slices.IsSorted(ran), ran)
	require.Len(t, ran, len(sent))

	behind := sameLane(newCalls(2), protocol.Exclusive)
	behind[0].Payload = large()
	first := r.dispatcher.Go(t.Context(), &behind[0])
	r.mustDispatch(t.Context(), behind[1:])
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
	r.smallMessages()
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	release := link.HoldWrites(func(subject string) bool { return strings.Contains(subject, wire.BlobsBucket(r.Name)) })
	defer release()
	uploads := newCalls(20)
	sent := make([]*calls.Handle, 0, len(uploads))
	for i := range uploads {
		uploads[i].Payload = large()
		sent = append(sent, d.Go(t.Context(), &uploads[i]))
	}
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	small := newCalls(3)
	one := d.Go(t.Context(), &small[0])
	require.NoError(t, d.Submit(t.Context(), &small[1]))
	_, err := d.CallWith(t.Context(), &small[2], calls.CallOptions{Brief: true})
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
	var others []*calls.Handle
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

// Law: a call waits for those of its After that began before it, and for none that begins later.
func TestQueue_NoTwoCallsWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	sent := newCalls(4)
	ref := func(i int) []protocol.CallRef {
		return []protocol.CallRef{{SessionID: sent[i].SessionID, ID: sent[i].ID}}
	}
	sent[0].After = ref(1)
	require.NoError(t, d.Submit(t.Context(), &sent[0]), "it is stored before the other one begins")
	release := link.HoldWrites(func(subject string) bool { return strings.HasSuffix(subject, "."+string(sent[1].ID)) })
	defer release()
	first := d.Go(t.Context(), &sent[1])
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	sent[2].After, sent[3].Resources = ref(1), sent[2].Resources
	second, third := d.Go(t.Context(), &sent[2]), d.Go(t.Context(), &sent[3])
	_, err := r.dispatcher.Attach(t.Context(), ref(3)[0])
	require.ErrorIs(t, err, calls.ErrNoCall, "it is behind a call that waits")
	release()
	for _, h := range []*calls.Handle{first, second, third} {
		<-h.Done()
		result, err := h.Result()
		require.NoError(t, err)
		require.Equal(t, protocol.StatusOK, result.Status)
	}
}

// Law: callers that wait for calls of one lane do not wait for each other to send them.
func TestQueue_CallersOfOneLaneSendConcurrently(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result { return succeed(run) })
	nc, link := r.ConnectVia()
	d := r.newDispatcher(nc, calls.Options{})
	defer d.Close()
	sent := sameLane(newCalls(3), protocol.Exclusive)
	_, err := d.Call(t.Context(), &sent[0])
	require.NoError(t, err)
	release := link.HoldWrites(func(subject string) bool { return strings.HasSuffix(subject, "."+string(sent[1].ID)) })
	defer release()
	held := make(chan error, 1)
	go func() {
		_, err := d.Call(t.Context(), &sent[1])
		held <- err
	}()
	require.Eventually(t, func() bool { return link.Held() > 0 }, patience, time.Millisecond)
	_, err = d.Call(t.Context(), &sent[2])
	require.NoError(t, err)
	release()
	require.NoError(t, <-held)
}

// Law: what a step waits for by After, and is not sent, rejects it at once.
func TestDispatch_AfterACallThatWasNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	sent := newCalls(1)
	missing := protocol.CallRef{SessionID: sent[0].SessionID, ID: "missing"}
	sent[0].After = []protocol.CallRef{missing}
	r.dispatcher.NotSent(missing)
	o := r.mustDispatch(t.Context(), sent)
	requireDone(t, o, sent[0], protocol.StatusRejected, protocol.CodeAfterUnmet)
}

// Law: Close stores the requests to cancel calls whose contexts have ended.
func TestClose_StoresCancels(t *testing.T) {
	t.Parallel()
	r := newRig(t, natsio.Topology{})
	d := r.newDispatcher(r.NC, calls.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	sent := newCalls(2)
	for i := range sent {
		require.NoError(t, d.Go([]context.Context{ctx, t.Context()}[i], &sent[i]).Accepted())
	}
	cancel()
	d.Close()
	ran := make(chan protocol.CallID, len(sent))
	r.hold(func(_ context.Context, run *lane.Run) protocol.Result {
		ran <- run.Call.ID
		return succeed(run)
	})
	for i, want := range []protocol.Status{protocol.StatusCancelled, protocol.StatusOK} {
		h, err := r.dispatcher.Attach(t.Context(), protocol.CallRef{SessionID: sent[i].SessionID, ID: sent[i].ID})
		require.NoError(t, err)
		<-h.Done()
		result, err := h.Result()
		require.NoError(t, err)
		require.Equal(t, want, result.Status)
	}
	require.Equal(t, sent[1].ID, <-ran)
	require.Empty(t, ran)
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
	result, err = r.dispatcher.CallWith(t.Context(), &sent[6], calls.CallOptions{Brief: true})
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
	r.smallMessages()
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
			var futures []*calls.Handle
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
