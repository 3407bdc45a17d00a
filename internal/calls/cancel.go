package calls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// cancel is the calls of a group that are to be cancelled.
type cancel struct {
	handles []*Handle
	until   time.Time // when calls without an answer get an unknown outcome
}

// stop stops the calls of a group whose context has ended; the lock is held.
func (t *table) stop(g *group) {
	for _, h := range g.handles {
		if h.abort != nil {
			h.abort(context.Cause(g.ctx))
		}
	}
	if t.detached(g) {
		return
	}
	for _, h := range g.handles {
		earlier := h.Call.Again && !g.StoreOnly // another attempt may have sent it
		switch {
		case h.state == handleQueued && earlier:
			h.state = handleSent
			t.wake(laneOf(h.Call))
		case h.state == handleQueued, h.state == handleSending && !h.leaving && !earlier:
			t.endUnsent(h, nil)
			t.wake(laneOf(h.Call))
		}
	}
	t.cancelGroup(g)
}

// detached ends the handles of a group whose context ended with [loop.ErrDetached], and reports
// whether it did: their calls continue, and are not cancelled. The lock is held.
func (t *table) detached(g *group) bool {
	cause := context.Cause(g.ctx)
	if !errors.Is(cause, loop.ErrDetached) {
		return false
	}
	for _, h := range g.handles {
		t.detach(h, cause)
	}
	return true
}

// cancelGroup cancels the calls of a group whose context has ended, once none of them is being
// sent: all together, so that none starts because one before it was stopped. If all of them have
// deadlines and the context's has passed, the fleet may end them first: a cancel at that
// moment would race with the deadlines, for one outcome or another. The lock is held.
func (t *table) cancelGroup(g *group) {
	if g.ctx.Err() == nil || g.sending > 0 || g.open == 0 || t.detached(g) {
		return
	}
	c := &cancel{}
	var last time.Time
	timed := errors.Is(g.ctx.Err(), context.DeadlineExceeded) && !g.due
	for _, h := range g.handles {
		if h.state != handleSent || !h.giveUp.IsZero() {
			continue
		}
		c.handles = append(c.handles, h)
		timed = timed && !h.Call.Deadline.IsZero()
		if h.Call.Deadline.After(last) {
			last = h.Call.Deadline
		}
	}
	if len(c.handles) == 0 {
		return
	}
	if timed {
		g.due = true
		const part = 5
		limit := g.CancelWait / part
		time.AfterFunc(min(max(time.Until(last), 0), limit)+limit, func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.cancelGroup(g)
		})
		return
	}
	wait := t.cancelWait(g, c.handles)
	c.until = time.Now().Add(wait)
	for _, h := range c.handles {
		h.giveUp = c.until
	}
	t.cancels = append(t.cancels, c)
	t.startSender()
	t.startPolling()
	time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.giveUp(c.handles)
	})
}

// cancelWait is how long results are waited for after a cancel, see [Options].
func (t *table) cancelWait(g *group, handles []*Handle) time.Duration {
	wait := g.CancelWait
	switch {
	case errors.Is(context.Cause(g.ctx), ErrClosed): // the connection ends soon
		wait = min(wait, time.Second)
	case errors.Is(g.ctx.Err(), context.DeadlineExceeded): // the caller's time is over
		if !t.d.nc.IsConnected() {
			wait = min(wait, time.Second)
		}
	case slices.ContainsFunc(handles, func(h *Handle) bool { return h.Call.Pool == protocol.SessionPool }):
		wait *= 2
	}
	return wait
}

// cancelLimit is how long a request to cancel may take at least, also if no result is waited for.
const cancelLimit = time.Second

// sendCancels stores requests to cancel calls, the last call first, and looks up their results. The
// lock is held, and released meanwhile.
func (t *table) sendCancels(c *cancel) {
	t.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.ctx, max(time.Until(c.until), cancelLimit))
	for _, h := range slices.Backward(c.handles) {
		t.mu.Lock()
		call, done := h.Call, h.state == handleDone
		t.mu.Unlock()
		if done {
			continue
		}
		err := t.d.publisher.Cancel(ctx, call)
		if err != nil {
			t.d.options.Logger.WarnContext(ctx, "call cannot be cancelled", slog.String("call_id", string(call.ID)), slog.Any("error", err))
		}
		t.mu.Lock()
		h.cancelled = err == nil
		t.mu.Unlock()
	}
	cancel()
	t.mu.Lock()
	for _, h := range c.handles {
		if t.closed && !h.group.waited {
			t.end(h, nil, fmt.Errorf("call %s: %w", h.Call.ID, ErrClosed))
		}
	}
	t.group.Go(func() { t.lookUp(c.handles) })
}

// giveUp ends handles of calls that were cancelled and have no result in time; the lock is held.
func (t *table) giveUp(handles []*Handle) {
	handles = slices.DeleteFunc(slices.Clone(handles), func(h *Handle) bool { return h.state == handleDone || h.loading })
	if len(handles) == 0 {
		return
	}
	t.group.Go(func() {
		served := map[protocol.Pool]bool{}
		for _, h := range handles {
			pool := h.Call.Pool
			if _, asked := served[pool]; !asked {
				served[pool] = !t.d.hasNoWorker(t.ctx, pool)
			}
			t.mu.Lock()
			if !h.group.UnsentResult && !h.accepted && !h.cancelled {
				t.end(h, nil, maybeSentError(h.group.ctx, h.Call))
			} else {
				r := wire.NewResult(h.Call, protocol.StatusOutcomeUnknown, h.unanswered(served[pool]))
				t.end(h, &r, nil)
			}
			t.mu.Unlock()
		}
	})
}

// unanswered is why there is no result of a call that was cancelled. Of a call that another process
// sent before this one, it is not known what was seen. The lock is held.
func (h *Handle) unanswered(served bool) *protocol.Error {
	switch {
	case !h.cancelled:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"no worker answered in time, and the fleet did not take a request to cancel the call; it may have had effects, or run later")
	case h.running:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"the worker that ran the call did not answer in time; a request to cancel it is stored, but it may have had effects")
	case h.Call.Again:
		return protocol.Errorf(protocol.CodeOutcomeUnknown,
			"no worker answered in time; a request to cancel the call is stored, but it may have had effects")
	case !served:
		return protocol.Errorf(protocol.CodeNoWorker,
			"pool %s has no worker, and none was seen to take the call; a request to cancel it is stored, so that a later worker does not run it", h.Call.Pool)
	default:
		return protocol.Errorf(protocol.CodeNoWorker,
			"no worker of pool %s was seen to take the call in time; a request to cancel it is stored", h.Call.Pool)
	}
}

// whoWait bounds the question whether a pool has workers. That there is none is
// answered by the server, at once unless the machine is busy.
const whoWait = 2 * time.Second

// hasNoWorker reports whether a pool has no process that takes its calls: no worker and, for the
// pool of sessions, no coordinator.
func (d *Dispatcher) hasNoWorker(ctx context.Context, pool protocol.Pool) bool {
	ctx, cancel := context.WithTimeout(ctx, whoWait)
	defer cancel()
	for _, subject := range []wire.Subject{wire.WhoSubject(d.fleet, pool), wire.AskAllSubject(d.fleet, pool)} { // coordinators of earlier versions answer the second one only
		if _, err := d.nc.RequestWithContext(ctx, subject, nil); !errors.Is(err, nats.ErrNoResponders) {
			return false
		}
	}
	return true
}

// endUnsent ends a call whose context ended before it was sent; fault is why it was not sent, or
// nil. The lock is held.
func (t *table) endUnsent(h *Handle, fault error) {
	ctx := h.group.ctx
	cause := context.Cause(ctx)
	switch {
	case errors.Is(cause, loop.ErrDetached): // another process may send it
		t.detach(h, cause)
	case !h.group.UnsentResult && fault != nil && !errors.Is(fault, context.Canceled) && !errors.Is(fault, ctx.Err()): // the fleet could not be reached
		t.end(h, nil, fmt.Errorf("%w: %w: %w", ErrUnreachable, cause, fault))
	case !h.group.UnsentResult:
		t.end(h, nil, t.d.endedBeforeSent(ctx, h.Call))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		r := wire.NewResult(h.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeDeadline, "the deadline passed before the call was sent; it does not run"))
		t.end(h, &r, nil)
	default:
		r := wire.NewResult(h.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "the call was stopped before it was sent; it does not run"))
		t.end(h, &r, nil)
	}
}

// maybeSentError is the error of a call that may have been sent.
func maybeSentError(ctx context.Context, call *protocol.Call) error {
	return fmt.Errorf("call %s: %w, but may have accepted the call: %w", call.ID, ErrUnreachable, context.Cause(ctx))
}

// endedBeforeSent is the error of a call whose context ended before it was sent.
func (d *Dispatcher) endedBeforeSent(ctx context.Context, call *protocol.Call) error {
	return notSentError(call, d.unreachableError(ctx, context.Cause(ctx)))
}

// notSentError is the error of a call that this process did not send. It wraps [lane.ErrNotSent],
// unless an earlier attempt may have sent the call.
func notSentError(call *protocol.Call, err error) error {
	if call.Again {
		return fmt.Errorf("call %s: it was not sent again: %w", call.ID, err)
	}
	return fmt.Errorf("call %s: %w: %w", call.ID, lane.ErrNotSent, err)
}

// unreachableError adds to an error the cause of a context that has ended, and that the server is
// away.
func (d *Dispatcher) unreachableError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if (ctx.Err() == nil || !d.nc.IsConnected()) && !errors.Is(err, ErrUnreachable) {
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}
