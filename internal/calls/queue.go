package calls

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxSenders bounds the goroutines that send and cancel calls for which no caller waits.
	maxSenders = 16
	// maxUploads bounds the payloads that are uploaded at the same time, since no message can carry
	// them. A sender that uploads counts no more as one of maxSenders, so that small calls pass.
	maxUploads = 4
	// maxBusyPause bounds the pause before a call is sent again that met a full lane or pool.
	maxBusyPause = 2 * time.Second
)

// unsent is what senders have to do.
type unsent struct {
	lanes   map[poolLane][]*Handle // in order
	turns   []poolLane             // lanes that no sender has
	cancels []*cancel
	senders int           // all of them busy, except those that upload
	uploads chan struct{} // payloads that are being uploaded
}

type poolLane struct {
	pool protocol.Pool
	lane protocol.Lane
}

func laneOf(c *protocol.Call) poolLane { return poolLane{c.Pool, c.Lane()} }

// queued is the part of a handle that its call needs until it is sent.
type queued struct {
	header  nats.Header
	publish trace.Span
	busy    error // why it is to be sent again, after a pause; nil if it is not
	pause   time.Duration
	abort   context.CancelCauseFunc // ends the sending; nil while no sender has it
	leaving bool                    // a sender has begun to publish it; before, it is certainly not stored
	trial   bool                    // calls that wait for it wait until it was sent
	after   []*trial                // of the calls that it waits for
}

// queue appends the calls of a group to the queues of their lanes. Calls for which a
// caller waits are sent at once if their lane has none, each lane by a sender of its own; serve,
// unless it is nil, does so for the first lane.
func (t *table) queue(g *group) (serve func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var direct map[poolLane][]*Handle
	for _, h := range g.handles {
		if h.group != nil { // it was sent before
			t.hold(h, g)
			continue
		}
		h.group, h.frames = g, g.Frames
		h.after = t.trialsOf(h.Call)
		t.begin(refOf(h.Call))
		h.trial = true
		at := laneOf(h.Call)
		full := t.laneBusy(at)
		_, had := t.lanes[at]
		switch {
		case t.closed:
			t.end(h, nil, notSentError(h.Call, ErrClosed))
			continue
		case g.StoreOnly && !h.Call.Again && full != nil:
			t.refuse(h, full)
			continue
		}
		t.open[h] = true
		if g.waited && !had {
			if direct == nil {
				direct = map[poolLane][]*Handle{}
			}
			direct[at] = append(direct[at], h)
			continue
		}
		t.enqueue(at, h)
		if full != nil {
			t.waitsFor(h, full.Error())
		}
	}
	for at, own := range direct {
		if g.inline && serve == nil {
			serve = func() { t.serve(at, own) }
			continue
		}
		t.group.Go(func() { t.serve(at, own) })
	}
	switch {
	case g.open == 0:
	case g.ctx.Err() != nil:
		t.stop(g)
	default:
		g.stop = context.AfterFunc(g.ctx, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.stop(g)
		})
	}
	return serve
}

// enqueue appends calls to the queue of their lane for the shared senders; the lock is held.
func (t *table) enqueue(at poolLane, calls ...*Handle) {
	queue, had := t.lanes[at]
	if t.lanes[at] = append(queue, calls...); !had {
		t.turns = append(t.turns, at)
		t.startSender()
	}
}

// serve sends calls of one lane whose caller waits for them. From the first one that has to wait
// they are left to the shared senders.
func (t *table) serve(at poolLane, own []*Handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.startPolling()
	for i, h := range own {
		sent := h.state != handleQueued || len(t.awaited(h)) == 0 && t.sendCall(h, true)
		h.signalChange()
		if sent {
			continue
		}
		if _, had := t.lanes[at]; had || h.busy == nil {
			t.enqueue(at, own[i:]...)
			return
		}
		t.lanes[at] = slices.Clone(own[i:])
		t.pauseLane(at)
		return
	}
}

// startSender starts a sender for what no sender has; the lock is held. Those that run are busy.
func (t *table) startSender() {
	if t.closed && len(t.cancels) == 0 || t.senders >= maxSenders || len(t.turns)+len(t.cancels) == 0 {
		return
	}
	t.senders++
	t.group.Go(t.send)
}

// send sends and cancels calls until there is none left. Once the table is closed it only cancels.
func (t *table) send() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; len(t.cancels) > 0 || len(t.turns) > 0 && !t.closed && t.senders <= maxSenders; t.startPolling() {
		if len(t.cancels) > 0 {
			c := t.cancels[0]
			t.cancels = t.cancels[1:]
			t.sendCancels(c)
			continue
		}
		at := t.turns[0]
		t.turns = t.turns[1:]
		if t.sendFirst(at) {
			t.turns = append(t.turns, at)
		}
	}
	t.senders--
	t.startSender() // this one may have been one too many
}

// sendFirst sends the first call of a lane, and reports whether there is a next one to be sent now.
// The lock is held, and released meanwhile.
func (t *table) sendFirst(at poolLane) (more bool) {
	h := t.lanes[at][0]
	if h.state == handleQueued && t.park(h, at) {
		return false
	}
	sent := h.state != handleQueued || t.sendCall(h, false)
	h.signalChange()
	if !sent {
		t.pauseLane(at)
		return false
	}
	if t.lanes[at] = t.lanes[at][1:]; len(t.lanes[at]) == 0 {
		delete(t.lanes, at)
		return false
	}
	return true
}

// pauseLane suspends a lane until its first call, which met a full lane or pool, is sent again.
// Calls behind it that do not wait for room, or whose time ends before, are refused. The lock is
// held.
func (t *table) pauseLane(at poolLane) {
	first := t.lanes[at][0]
	for _, h := range t.lanes[at] {
		switch {
		case h.state != handleQueued:
		case h != first && !h.Call.Again && (h.group.StoreOnly || !h.mayWait(first.pause)):
			t.refuse(h, first.busy)
		default:
			t.waitsFor(h, first.busy.Error())
		}
		h.signalChange() // it can be cancelled now
	}
	time.AfterFunc(first.pause, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.turns = append(t.turns, at)
		t.startSender()
	})
}

// isBlocked reports whether a queued call waits because the first one of its lane waits, for room
// or for a trial; the lock is held.
func (t *table) isBlocked(h *Handle) bool {
	at := laneOf(h.Call)
	_, parked := t.parked[at]
	return parked || t.laneBusy(at) != nil
}

// laneBusy is why the first call of a lane waits for room; nil if it does not. The lock is held.
func (t *table) laneBusy(at poolLane) error {
	if queue := t.lanes[at]; len(queue) > 0 && queue[0].state == handleQueued {
		return queue[0].busy
	}
	return nil
}

// refuse ends a call that was not sent for a reason of [codeOf]; the lock is held.
func (t *table) refuse(h *Handle, fault error) {
	t.end(h, t.d.onPublished(h, fault), nil)
}

// mayWait reports whether a call that was not sent could be sent after a pause.
func (h *Handle) mayWait(pause time.Duration) bool {
	end := h.lastStart()
	return end.IsZero() || !time.Now().Add(pause).After(end)
}

// lastStart is when the call starts at the latest; zero is any time.
func (h *Handle) lastStart() time.Time {
	end := h.Call.Deadline
	if wait := h.Call.QueueTimeout.Duration(); wait > 0 {
		if last := h.since.Add(wait); end.IsZero() || last.Before(end) {
			end = last
		}
	}
	return end
}

// upload waits until few others upload a payload. A shared sender is replaced meanwhile. done is to
// be called when the call was sent.
func (t *table) upload(ctx context.Context, shared bool) (done func(), err error) {
	count := func(n int) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.senders += n
		t.startSender()
	}
	if shared {
		count(-1)
	}
	free := func() {}
	select {
	case t.uploads <- struct{}{}:
		free = func() { <-t.uploads }
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return func() {
		if free(); shared {
			count(1)
		}
	}, err
}

// sendCall sends a call; the lock is held, and released meanwhile. It reports false for a call that
// is to be sent again after a pause, because its lane or pool is full.
func (t *table) sendCall(h *Handle, byCaller bool) bool {
	g := h.group
	ctx, abort := context.WithCancelCause(context.WithoutCancel(g.ctx)) // stop ends it, for the group that has it then
	defer abort(nil)
	defer context.AfterFunc(t.sending, func() { abort(ErrClosed) })()
	h.state, h.leaving, h.abort = handleSending, false, abort
	g.sending++
	t.mu.Unlock()
	known, unmet, fault := t.trySend(ctx, h, g, byCaller)
	t.mu.Lock()
	h.abort = nil
	g = h.group // it may be held by another one now
	g.sending--
	defer t.cancelGroup(g)
	if t.waitsForRoom(h, fault) {
		return false
	}
	if unmet == nil && known == nil {
		unmet = t.d.onPublished(h, fault)
	}
	if h.state == handleDone { // its result came first, or it was detached
		if h.accepted && !g.StoreOnly {
			t.d.publisher.Ended(h.Call, h.result)
		}
		return true
	}
	h.state = handleSent
	switch notSent := errors.Is(fault, lane.ErrNotSent); {
	case unmet != nil:
		t.end(h, unmet, nil)
	case g.StoreOnly && (h.accepted || known != nil):
		t.end(h, nil, nil)
	case known != nil:
		t.end(h, known, nil)
	case t.closed && notSent:
		t.end(h, nil, notSentError(h.Call, ErrClosed))
	case t.closed && g.ctx.Err() == nil:
		t.end(h, nil, fmt.Errorf("call %s: %w", h.Call.ID, ErrClosed))
	case h.accepted:
		t.report(h, loop.Update{State: loop.StateQueued})
		t.schedule(h)
	case g.ctx.Err() != nil && notSent:
		t.endUnsent(h, fault)
	case g.StoreOnly:
		t.end(h, nil, t.d.unreachableError(g.ctx, fault))
	case g.ctx.Err() != nil: // whether it was stored is unknown, and cancelling it settles that
		t.schedule(h)
	default:
		t.end(h, nil, fmt.Errorf("%w: %w", ErrUnreachable, fault))
	}
	if h.trial {
		h.trial = false
		t.endTrial(refOf(h.Call), false)
	}
	return true
}

// trySend sends a call, unless the fleet has its result already (known), or it cannot run because
// of the calls that it waits for (unmet). g is its group as the sending began.
func (t *table) trySend(ctx context.Context, h *Handle, g *group, byCaller bool) (known, unmet *protocol.Result, fault error) {
	if unmet = t.unmet(ctx, h.Call, h.after); unmet != nil {
		return nil, unmet, nil
	}
	if !g.StoreOnly {
		if err := t.follow(ctx, h); err != nil {
			return nil, nil, notSentError(h.Call, err)
		}
	}
	if g.waited && h.Call.Again {
		if known = t.d.storedResult(ctx, h.Call); known != nil {
			return known, nil, nil
		}
	}
	if g.copyResult != nil && ctx.Err() == nil { // else it is not sent
		if err := g.copyResult(ctx, h.Call); err != nil {
			return nil, nil, notSentError(h.Call, err)
		}
	}
	t.mu.Lock()
	h.leaving = h.state != handleDone
	leaving := h.leaving
	t.mu.Unlock()
	if !leaving {
		return nil, nil, notSentError(h.Call, context.Cause(ctx))
	}
	uploaded := func() {}
	fault = t.d.publisher.Enqueue(ctx, lane.Outgoing{
		Call: h.Call, Header: h.header, Followed: !g.StoreOnly, Findable: g.Findable || g.StoreOnly,
		Upload: func() (err error) {
			uploaded, err = t.upload(ctx, !byCaller)
			return err
		},
	})
	uploaded()
	if errors.Is(fault, lane.ErrFullAgain) {
		known = t.d.storedResult(ctx, h.Call)
	}
	return known, nil, fault
}

// storedResult is the result of a call that is stored; nil if there is none, or it cannot be read
// now.
func (d *Dispatcher) storedResult(ctx context.Context, call *protocol.Call) *protocol.Result {
	r, err := d.publisher.Result(ctx, call.SessionID, call.ID)
	if err != nil {
		return nil
	}
	return r
}

// waitsForRoom has a call queue again that met a full lane or pool, unless it does not wait for
// that; the lock is held.
func (t *table) waitsForRoom(h *Handle, fault error) bool {
	bound, ok := errors.AsType[*protocol.Error](fault)
	if !ok || !errors.Is(fault, lane.ErrBusy) || h.group.StoreOnly || h.state == handleDone || t.closed || h.group.ctx.Err() != nil {
		return false
	}
	pause := min(max(2*h.pause, bound.RetryAfter.Duration()), maxBusyPause)
	if !h.mayWait(pause) {
		return false
	}
	const part = 5
	h.pause = pause + rand.N(pause/part+1) //nolint:gosec // no secret
	h.state, h.busy = handleQueued, bound
	return true
}

// onPublished notes that a call was stored, or why it was not. It returns a result if the
// fleet refused the call. The lock is held.
func (d *Dispatcher) onPublished(h *Handle, fault error) (refused *protocol.Result) {
	telemetry.Fail(h.publish, fault)
	h.publish.End()
	code := codeOf(fault)
	d.metrics.Sent(h.group.ctx, string(h.Call.Pool), string(h.Call.Tenant), string(code))
	message, after := "", protocol.Millis(0)
	switch code {
	case "":
		h.times.SendMS, h.times.Full = h.millis(), h.waits
		h.accepted, h.waits = true, ""
		h.signalChange()
		return nil
	case protocol.CodeBusy, protocol.CodeQuota:
		if bound, ok := errors.AsType[*protocol.Error](fault); ok {
			after = bound.RetryAfter
			message = fmt.Sprintf("%s; the call was not run, try again in %s", bound.Message, after.Duration())
		}
	case protocol.CodeFleetFull:
		message = "the fleet's queue is full; the call was not run, try again later"
	case codes.PayloadTooLarge:
		message = fault.Error() + "; it was not run, send less at once"
	default:
		return nil
	}
	r := wire.NewResult(h.Call, protocol.StatusRejected, protocol.Errorf(code, "%s", message))
	r.Error.RetryAfter = after
	return &r
}

// codeOf is the code for which a call could not be stored; "" when it was.
func codeOf(fault error) protocol.Code {
	switch {
	case fault == nil:
		return ""
	case errors.Is(fault, lane.ErrBusy):
		return protocol.CodeBusy
	case errors.Is(fault, lane.ErrQuota):
		return protocol.CodeQuota
	case errors.Is(fault, lane.ErrFull):
		return protocol.CodeFleetFull
	case errors.Is(fault, lane.ErrTooLarge):
		return codes.PayloadTooLarge
	default:
		return protocol.CodeFleetUnavailable
	}
}
