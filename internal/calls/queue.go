package calls

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// The queue of calls that are to be sent
//
// Calls of one lane are sent in the order in which they were queued, by a few senders. Calls that
// are not queued, as those of a step, wait for those that were queued before, see waitTurn. A call
// that meets a full lane holds back those behind it. A large payload is uploaded by a sender that
// counts no more, so calls of other lanes pass.

// unsent is what senders have to send.
type unsent struct {
	lanes   map[futureLane][]*Future // in order
	turns   []futureLane             // lanes that no sender has
	cancels []*Future
	senders int           // all of them busy, except those that upload
	uploads chan struct{} // payloads that are being uploaded
}

type futureLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

// Submit is [Dispatcher.Enqueue], and waits.
func (d *Dispatcher) Submit(ctx context.Context, call *protocol.Call) error {
	return d.Enqueue(ctx, call)()
}

// Enqueue enqueues a call in the order of [Dispatcher.Go], without following it. It does not wait:
// that is what stored is for, which returns nil once the call is stored. A call behind those that a
// full lane or pool holds back is refused as they are.
func (d *Dispatcher) Enqueue(ctx context.Context, call *protocol.Call) (stored func() error) {
	f := d.queue(ctx, call, true)
	return func() error {
		<-f.done
		if f.result != nil {
			return fmt.Errorf("%w: %w", lane.ErrNotSent, f.result.Error)
		}
		return f.err
	}
}

// queue appends a call to those of its lane that are to be sent: there is no other way for a call
// that may not overtake them, see also [futures.waitTurn].
func (d *Dispatcher) queue(ctx context.Context, call *protocol.Call, submit bool) *Future {
	call = &wire.ApplyFlow(ctx, []protocol.Call{*call})[0]
	d = d.of(call.Pool)
	t := d.futures
	f := &Future{Call: call, futures: t, ctx: ctx, done: make(chan struct{}), submit: submit}
	f.followed = d.begin(ctx, call)
	t.mu.Lock()
	defer t.mu.Unlock()
	f.after = t.trialsOf(call)
	t.begin(refOf(call))
	f.trial, f.number = true, t.begun
	at := futureLane{call.Pool, call.Lane()}
	queue, had := t.lanes[at]
	switch {
	case t.closed:
		t.end(f, nil, neverSent(call, ErrClosed))
		return f
	case ctx.Err() != nil:
		t.end(f, nil, d.notSent(ctx, call))
		return f
	case submit && !call.Again && had && queue[0].heldBack != nil:
		t.refuse(f, queue[0].heldBack)
		return f
	case !submit:
		t.add(f) //nolint:contextcheck // what it subscribes outlives the caller
	}
	t.lanes[at] = append(queue, f)
	if !had {
		t.turns = append(t.turns, at)
		t.startSender()
	}
	f.stop = context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.cancelled(f)
	})
	return f
}

// waitTurn returns when the lane of a call is past all that was queued before it: before it began,
// if others may wait for it, so that no two calls wait for each other. It returns an error that
// wraps [lane.ErrBusy] when the time of the call ends before that.
func (t *futures) waitTurn(ctx context.Context, call *protocol.Call, since time.Time) error {
	t.mu.Lock()
	queue := t.lanes[futureLane{call.Pool, call.Lane()}]
	if own := t.trials[refOf(call)]; own != nil {
		later := slices.IndexFunc(queue, func(f *Future) bool { return f.number >= own.number })
		if later >= 0 {
			queue = queue[:later]
		}
	}
	if len(queue) == 0 {
		t.mu.Unlock()
		return nil
	}
	last := queue[len(queue)-1]
	if last.passed == nil {
		last.passed = make(chan struct{})
	}
	passed := last.passed
	t.mu.Unlock()
	limit := ctx
	if end := lastStart(call, since); !end.IsZero() && !call.Again { // else the fleet may have it, and says how it ended
		var cancel context.CancelFunc
		limit, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	select {
	case <-passed:
		return nil
	case <-t.ctx.Done():
		return ErrClosed
	case <-limit.Done():
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	busy := protocol.Errorf(protocol.CodeBusy, "earlier calls of lane %s are not sent yet", call.Lane())
	busy.RetryAfter = protocol.MillisOf(maxBusyPause)
	return busy
}

// cancelled cancels a call whose context has ended; the lock is held.
func (t *futures) cancelled(f *Future) {
	switch f.state {
	case futureQueued:
		if f.Call.Again && !f.submit {
			f.state = futureSent // by an earlier attempt, maybe
			t.cancels = append(t.cancels, f)
			t.startSender()
			t.wake(futureLane{f.Call.Pool, f.Call.Lane()})
			return
		}
		t.end(f, nil, t.d.notSent(f.ctx, f.Call))
		t.wake(futureLane{f.Call.Pool, f.Call.Lane()})
	case futureSent:
		t.cancels = append(t.cancels, f)
		t.startSender()
	case futureSending, futureDone: // the sender sees it
	}
}

// startSender starts a sender for what no sender has; the lock is held. Those that run are busy.
func (t *futures) startSender() {
	if t.closed || t.senders >= maxSenders || len(t.turns)+len(t.cancels) == 0 {
		return
	}
	t.senders++
	t.group.Go(t.send)
}

// send enqueues and cancels calls until there is none left.
func (t *futures) send() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; len(t.cancels)+len(t.turns) > 0 && !t.closed && t.senders <= maxSenders; t.startLooking() {
		if len(t.cancels) > 0 {
			f := t.cancels[0]
			t.cancels = t.cancels[1:]
			t.sendCancel(f)
			continue
		}
		at := t.turns[0]
		t.turns = t.turns[1:]
		f := t.lanes[at][0]
		if f.state == futureQueued && t.park(f, at) {
			continue
		}
		sent := f.state != futureQueued || t.sendCall(f)
		f.look()
		if !sent {
			t.holdBack(at)
			time.AfterFunc(f.wait, func() { t.sendAgain(at) })
			continue
		}
		if f.passed != nil {
			close(f.passed)
		}
		if t.lanes[at] = t.lanes[at][1:]; len(t.lanes[at]) == 0 {
			delete(t.lanes, at)
		} else {
			t.turns = append(t.turns, at)
		}
	}
	t.senders--
	t.startSender() // this one may have been one too many
}

// holdBack applies what holds back the first call of a lane to those behind it: calls that do not
// wait for room, or whose time ends before the next attempt, are refused. The lock is held.
func (t *futures) holdBack(at futureLane) {
	first := t.lanes[at][0]
	for _, f := range t.lanes[at][1:] {
		if f.state == futureQueued && !f.Call.Again && (f.submit || !f.mayWait(first.wait)) {
			t.refuse(f, first.heldBack)
		}
		f.look() // it can be cancelled now
	}
}

// isHeldBack reports whether the first call of a lane waits for room; the lock is held.
func (t *futures) isHeldBack(at futureLane) bool {
	queue := t.lanes[at]
	return len(queue) > 0 && queue[0].state == futureQueued && queue[0].heldBack != nil
}

// refuse ends a call that was not sent for a reason of [codeOf]; the lock is held.
func (t *futures) refuse(f *Future, fault error) {
	t.end(f, t.d.sent(f.ctx, f.followed, fault), nil)
}

// upload has a sender of small calls replace the one that is about to upload a payload, and waits
// until few others upload. done is to be called when the call was sent.
func (t *futures) upload(ctx context.Context) (done func(), err error) {
	t.mu.Lock()
	t.senders--
	t.startSender()
	t.mu.Unlock()
	free := func() {}
	select {
	case t.uploads <- struct{}{}:
		free = func() { <-t.uploads }
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return func() {
		free()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.senders++
	}, err
}

// look has those who want to cancel a call look at its state again; the lock is held.
func (f *Future) look() {
	if f.tried != nil {
		close(f.tried)
		f.tried = nil
	}
}

// sendAgain sends the calls of a lane that was full.
func (t *futures) sendAgain(at futureLane) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turns = append(t.turns, at)
	t.startSender()
}

// sendCall enqueues a call; the lock is held, and released meanwhile. It reports false for a call
// that is to be sent again after a wait, because its lane or pool is full.
func (t *futures) sendCall(f *Future) bool {
	f.state = futureSending
	t.mu.Unlock()
	unmet, known, fault := t.trySend(f)
	t.mu.Lock()
	if unmet != nil {
		t.end(f, unmet, nil)
		return true
	}
	if t.waitsForRoom(f, fault) {
		return false
	}
	refused := t.d.sent(f.ctx, f.followed, fault)
	if f.state == futureDone { // its result came first
		if f.accepted {
			t.d.publisher.Ended(f.Call, f.result)
		}
		return true
	}
	f.state = futureSent
	switch notSent := errors.Is(fault, lane.ErrNotSent); {
	case refused != nil:
		t.end(f, refused, nil)
	case f.submit && (f.accepted || known):
		t.end(f, nil, nil)
	case t.closed && notSent:
		t.end(f, nil, neverSent(f.Call, ErrClosed))
	case t.closed:
		t.end(f, nil, fmt.Errorf("call %s: %w", f.Call.ID, ErrClosed))
	case f.accepted || known:
		t.schedule(f)
	case f.ctx.Err() != nil && notSent:
		t.end(f, nil, t.d.notSent(f.ctx, f.Call))
	case f.submit:
		t.end(f, nil, t.d.whyNot(f.ctx, fault))
	case f.ctx.Err() != nil: // whether it was enqueued is unknown, and cancelling it settles that
		t.schedule(f)
	default:
		t.end(f, nil, fmt.Errorf("%w: %w", ErrUnreachable, fault))
	}
	if f.trial {
		f.trial = false
		t.endTrial(refOf(f.Call), false)
	}
	if f.state == futureSent && f.ctx.Err() != nil {
		t.cancels = append(t.cancels, f)
	}
	return true
}

// trySend sends a call, unless it cannot run because of those that it waits for. known says that
// the fleet has its result.
func (t *futures) trySend(f *Future) (unmet *protocol.Result, known bool, fault error) {
	ctx, cancel := context.WithCancelCause(f.ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.ctx, func() { cancel(ErrClosed) })()
	if unmet = t.unmet(ctx, f.Call, f.after); unmet != nil {
		return unmet, false, nil
	}
	if !f.submit {
		if err := t.listen(ctx, f.Call.SessionID); err != nil {
			return nil, false, neverSent(f.Call, err)
		}
	}
	uploaded := func() {}
	fault = t.d.publisher.Enqueue(ctx, []lane.Outgoing{{
		Call: f.Call, Header: f.header, Followed: !f.submit, Findable: true,
		Upload: func() (err error) {
			uploaded, err = t.upload(ctx)
			return err
		},
	}})[0]
	uploaded()
	return nil, errors.Is(fault, lane.ErrFullAgain) && t.d.hasResult(ctx, f.Call), fault
}

// waitsForRoom has a call queue again that met a full lane or pool, unless it does not wait for
// that; the lock is held.
func (t *futures) waitsForRoom(f *Future, fault error) bool {
	bound, ok := errors.AsType[*protocol.Error](fault)
	if !ok || !errors.Is(fault, lane.ErrBusy) || f.submit || f.state == futureDone || t.closed || f.ctx.Err() != nil {
		return false
	}
	pause := min(max(2*f.wait, bound.RetryAfter.Duration()), maxBusyPause)
	if !f.mayWait(pause) {
		return false
	}
	f.wait, f.state, f.heldBack = pause, futureQueued, fault
	return true
}

// sendCancel stores a request to cancel a call; the lock is held, and released meanwhile.
func (t *futures) sendCancel(f *Future) {
	if f.state == futureDone {
		return
	}
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.ctx, t.d.options.CancelWait)
	err := t.d.publisher.Cancel(ctx, f.Call)
	cancel()
	t.mu.Lock()
	f.cancelled = err == nil
	f.giveUp = time.Now().Add(t.d.options.CancelWait)
	f.lookAt = time.Now()
	if errors.Is(f.ctx.Err(), context.DeadlineExceeded) && f.Call.Deadline.IsZero() && !t.d.nc.IsConnected() {
		f.giveUp = time.Now().Add(time.Second)
	}
}
