package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Grace is the longest time that [Dispatcher.Promptly] continues after its context has ended.
const Grace = 100 * time.Millisecond

// graceWait is the part of [Grace] in which a worker may answer a cancel. The rest is for asking
// whether there is one.
const graceWait = Grace / 2

// ErrUnreachable is wrapped by errors about a fleet that did not answer.
var ErrUnreachable = errors.New("the fleet cannot be reached")

// One runs a single call and returns its result, or an error of [Dispatcher.Dispatch], or one that
// wraps [lane.ErrNotSent] if ctx ended before the call was sent.
func (d *Dispatcher) One(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
	return d.Observed(ctx, call, nil)
}

// Told is [Dispatcher.One], and reports what the call waits for if no worker can run it or its
// worker is lost.
func (d *Dispatcher) Told(ctx context.Context, call *protocol.Call, tell func(waits string)) (*protocol.Result, error) {
	return d.Observed(ctx, call, func(u loop.Update) {
		if waits := cmp.Or(u.Waits, u.Lost); waits != "" {
			tell(waits)
		}
	})
}

// Observed is [Dispatcher.One], and reports every change of the call; observe may be nil.
func (d *Dispatcher) Observed(ctx context.Context, call *protocol.Call, observe func(loop.Update)) (*protocol.Result, error) {
	if err := d.enter(call); err != nil {
		return nil, err
	}
	defer d.left.Done()
	return d.one(ctx, call, d.options.CancelWait, observe)
}

// one is [Dispatcher.Observed] with a time to wait for results after a cancel; observe may be nil.
func (d *Dispatcher) one(ctx context.Context, call *protocol.Call, cancelWait time.Duration, observe func(loop.Update)) (*protocol.Result, error) {
	var result *protocol.Result
	err := d.dispatch(ctx, []protocol.Call{*call}, how{cancelWait: cancelWait, alone: true}, func(u loop.Update) {
		result = u.Result
		if observe != nil {
			observe(u)
		}
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}

// Promptly is [Dispatcher.One] for those who do not wait for what becomes of a cancel: it returns
// within [Grace] of the end of ctx. Should the server not answer by then, the request to cancel the
// call is still on its way, and [Dispatcher.Close] waits for it. An error that wraps
// [lane.ErrNotSent] says that the call will not run; after any other it may. observe gets every
// change of the call, until Promptly returns or a little longer, and may be nil.
func (d *Dispatcher) Promptly(ctx context.Context, call *protocol.Call, observe func(loop.Update)) (*protocol.Result, error) {
	if ctx.Err() != nil {
		return nil, d.notSent(ctx, call)
	}
	tried, unmet, err := d.of(call.Pool).futures.sendAfter(ctx, call)
	if err != nil || unmet != nil {
		return unmet, err
	}
	type outcome struct {
		result *protocol.Result
		err    error
	}
	var accepted atomic.Bool
	done := make(chan outcome, 1)
	if err := d.enter(call); err != nil {
		tried(true)
		return nil, err
	}
	go func() {
		defer d.left.Done()
		result, err := d.one(ctx, call, graceWait, func(u loop.Update) {
			if u.Result == nil && u.Waits == "" { // else it may be held back, or was refused
				accepted.Store(true)
				tried(false)
			}
			if observe != nil {
				observe(u)
			}
		})
		tried(notRun(result, err))
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
	}
	limit := time.NewTimer(Grace)
	defer limit.Stop()
	select {
	case o := <-done:
		return o.result, o.err
	case <-limit.C:
	}
	if !accepted.Load() {
		return nil, maySent(ctx, call)
	}
	unknown := wire.NewResult(call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the fleet took the call, and did not answer a request to cancel it at once; it may have had effects, or run later"))
	return &unknown, nil
}

// enter has Close wait for a call: left.Done ends that.
func (d *Dispatcher) enter(call *protocol.Call) error {
	d.futures.mu.Lock()
	defer d.futures.mu.Unlock()
	if d.futures.closed {
		return neverSent(call, ErrClosed)
	}
	d.left.Add(1)
	return nil
}

// closeWait bounds the time of [Dispatcher.Close]. An observer of the user's may never return.
const closeWait = 5 * time.Second

// Close ends all futures with [ErrClosed]; their calls continue. Requests to cancel single calls
// whose contexts have ended are stored first, which takes a few seconds at most. By
// [Dispatcher.Dispatch] no call may be dispatched meanwhile.
func (d *Dispatcher) Close() {
	d.futures.close()
	stored := make(chan struct{})
	go func() {
		defer close(stored)
		d.left.Wait()
	}()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-stored:
	case <-limit.C:
	}
}

// maySent is the error of a call that may have been sent.
func maySent(ctx context.Context, call *protocol.Call) error {
	return fmt.Errorf("call %s: %w, but may have accepted the call: %w", call.ID, ErrUnreachable, context.Cause(ctx))
}

// notSent is the error of a call whose context ended before it was sent.
func (d *Dispatcher) notSent(ctx context.Context, call *protocol.Call) error {
	return neverSent(call, d.whyNot(ctx, context.Cause(ctx)))
}

// neverSent is the error of a call that this process did not send. It wraps [lane.ErrNotSent],
// unless an earlier attempt may have sent the call.
func neverSent(call *protocol.Call, err error) error {
	if call.Again {
		return fmt.Errorf("call %s: it was not sent again: %w", call.ID, err)
	}
	return fmt.Errorf("call %s: %w: %w", call.ID, lane.ErrNotSent, err)
}

// whyNot adds to an error the cause of a context that has ended, and that the server is away.
func (d *Dispatcher) whyNot(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if (ctx.Err() == nil || !d.nc.IsConnected()) && !errors.Is(err, ErrUnreachable) {
		err = fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return err
}
