package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Grace is the longest time that a brief call continues after its context has ended.
const Grace = 100 * time.Millisecond

// graceWait is the part of [Grace] in which a worker may answer a cancel. The rest is for asking
// whether there is one.
const graceWait = Grace / 2

var errTwice = errors.New("dispatched twice in one step")

// Dispatch sends calls as [Dispatcher.Send] does, and returns when each has ended. An error is that
// of the fleet, or [loop.ErrDetached]; observe gets the results of the calls.
func (d *Dispatcher) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	seen := make(map[protocol.CallID]bool, len(calls))
	for i := range calls {
		if seen[calls[i].ID] {
			return fmt.Errorf("call %s: %w", calls[i].ID, errTwice)
		}
		seen[calls[i].ID] = true
	}
	s := d.sendAndWait(ctx, calls, SendOptions{UnsentResult: true, inline: true})
	if faults := s.run(observe, nil); len(faults) > 0 {
		if cause := context.Cause(ctx); errors.Is(cause, loop.ErrDetached) {
			return cause
		}
		return errors.Join(faults...)
	}
	return nil
}

// Send implements [loop.Dispatcher].
func (d *Dispatcher) Send(ctx context.Context, calls []protocol.Call, observe func(loop.Update), held ...loop.Handle) []loop.Handle {
	earlier := make([]*Handle, len(held))
	for i := range held {
		h, _ := held[i].(*stepHandle) // the dispatcher has no other handles
		earlier[i] = h.Handle
	}
	s := d.sendAndWait(ctx, calls, SendOptions{UnsentResult: true, quiet: observe == nil}, earlier...)
	s.ends = make(map[*Handle]*stepHandle, len(s.handles))
	handles := make([]loop.Handle, len(s.handles))
	for i, h := range s.handles {
		s.ends[h] = &stepHandle{Handle: h, step: s, done: make(chan struct{})}
		handles[i] = s.ends[h]
	}
	go s.run(observe, nil) // ends with its handles
	return handles
}

// stepHandle is the handle of a call as an observer of [Dispatcher.Send] has it.
type stepHandle struct {
	*Handle

	step *step
	done chan struct{} // closed when the observer has all changes, and result and err are set

	result *protocol.Result
	err    error
}

// Done implements [loop.Handle].
func (h *stepHandle) Done() <-chan struct{} { return h.done }

// Result implements [loop.Handle].
func (h *stepHandle) Result() (*protocol.Result, error) { return h.result, h.err }

// Detach implements [loop.Handle].
func (h *stepHandle) Detach() { h.step.detach(h.Handle) }

// CallOptions say how a caller waits for one call.
type CallOptions struct {
	// Observe gets every change of the call; nil is no observer.
	Observe func(loop.Update)
	// Frames is that of [SendOptions].
	Frames func(*wire.Frame)
	// Brief is for callers that do not wait for what becomes of a cancel: they wait for [Grace]
	// after the end of the context. Should the server not answer by then, the request to cancel the
	// call is still on its way, and [Dispatcher.Close] waits for it.
	Brief bool
}

// Call runs one call and returns its result, or an error: one that wraps [lane.ErrNotSent] says
// that the call does not run.
func (d *Dispatcher) Call(ctx context.Context, call *protocol.Call) (*protocol.Result, error) {
	return d.CallWith(ctx, call, CallOptions{})
}

// CallWith is [Dispatcher.Call] with options.
func (d *Dispatcher) CallWith(ctx context.Context, call *protocol.Call, o CallOptions) (*protocol.Result, error) {
	options, ended := SendOptions{Frames: o.Frames, inline: !o.Brief, quiet: o.Observe == nil}, (<-chan struct{})(nil)
	if o.Brief {
		if ctx.Err() != nil {
			return nil, d.endedBeforeSent(ctx, call)
		}
		options.CancelWait, ended = graceWait, ctx.Done()
	}
	s := d.sendAndWait(ctx, []protocol.Call{*call}, options)
	faults, h := s.run(o.Observe, ended), s.handles[0]
	switch {
	case len(faults) > 0:
		return nil, faults[0]
	case s.open == 0:
		return h.result, nil
	}
	h.table.mu.Lock()
	accepted := h.accepted
	h.table.mu.Unlock()
	if !accepted {
		return nil, maybeSentError(ctx, call)
	}
	unknown := wire.NewResult(call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the fleet took the call, and did not answer a request to cancel it at once; it may have had effects, or run later"))
	return &unknown, nil
}

// OnWaits is an observer that gets what a call waits for if no worker can run it, or its worker is
// lost.
func OnWaits(report func(waits string)) func(loop.Update) {
	return func(u loop.Update) {
		if waits := cmp.Or(u.Waits, u.Lost); waits != "" {
			report(waits)
		}
	}
}

// Submit stores a call with the fleet, in the order of [Dispatcher.SendWith], without following it.
func (d *Dispatcher) Submit(ctx context.Context, call *protocol.Call) error {
	return d.SendWith(ctx, []protocol.Call{*call}, SendOptions{StoreOnly: true})[0].Accepted()
}

// step is calls whose caller waits for them, or has an observer for them that may block.
type step struct {
	handles []*Handle
	ends    map[*Handle]*stepHandle // nil if the caller has no handles
	open    int                     // handles that have not ended, as far as the caller knows
	wake    chan struct{}           // has room while the caller knows of all changes

	size int // the number of changes that wait at most, in addition to ends

	mu      sync.Mutex
	changes []change
}

// change is an update that the caller of a step has not got yet.
type change struct {
	handle *Handle
	loop.Update
}

// stateMoved is the last state of a call for an observer whose handle another one holds now.
const stateMoved loop.State = "moved"

// sendAndWait sends calls whose caller waits for them. The handles of held join theirs, behind
// them.
func (d *Dispatcher) sendAndWait(ctx context.Context, calls []protocol.Call, o SendOptions, held ...*Handle) *step {
	n := len(calls) + len(held)
	s := &step{wake: make(chan struct{}, 1), open: n, size: maxChanges * n}
	o.waited, o.Observe, o.step = true, s.add, s
	var serve func()
	if s.handles, serve = d.send(ctx, calls, o, held...); serve != nil {
		serve()
	}
	s.handles = append(s.handles, held...)
	return s
}

// maxChanges is how many changes of a call, in addition to its end, wait for the caller of a step
// on average; more are dropped.
const maxChanges = 16

func (s *step) add(h *Handle, u loop.Update) {
	s.mu.Lock()
	if u.State == loop.StateDone || u.State == stateMoved || len(s.changes) < s.size {
		s.changes = append(s.changes, change{h, u})
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *step) drain() []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.changes
	s.changes = nil
	return changes
}

// run passes changes to observe, which may be nil, until all handles have ended, or until [Grace]
// after ended is closed. The fleet may fail for one of the calls: then the others are left to
// themselves, once an attempt was made to send them.
func (s *step) run(observe func(loop.Update), ended <-chan struct{}) (faults []error) {
	var over <-chan time.Time
	for s.open > 0 {
		select {
		case <-s.wake:
		case <-ended:
			limit := time.NewTimer(Grace)
			defer limit.Stop()
			ended, over = nil, limit.C
			continue
		case <-over:
			return nil
		}
		if faults = s.deliver(nil, observe); len(faults) == 0 {
			continue
		}
		for _, h := range s.handles {
			h.await(nil, func() bool {
				return h.group.step != s || h.state != handleSending && (h.state != handleQueued || h.table.isBlocked(h))
			})
		}
		faults = s.deliver(faults, observe)
		for _, h := range s.handles {
			s.detach(h)
		}
		s.deliver(nil, observe) // the ends of those, and a result that came meanwhile
		return faults
	}
	return nil
}

// detach is [Handle.Detach] for a handle that no other step holds.
func (s *step) detach(h *Handle) {
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	if h.group.step == s {
		if h.abort != nil { // from now on it is another process that sends or refuses it
			h.abort(loop.ErrDetached)
		}
		h.table.detach(h, loop.ErrDetached)
	}
}

// deliver passes on the changes that are there, and adds the errors of handles.
func (s *step) deliver(faults []error, observe func(loop.Update)) []error {
	for _, c := range s.drain() {
		switch {
		case c.State == stateMoved:
			s.end(c.handle, nil, loop.ErrDetached)
			continue
		case c.State == loop.StateDone && c.handle.err != nil:
			faults = append(faults, c.handle.err)
			s.end(c.handle, nil, c.handle.err)
			continue
		}
		if observe != nil {
			observe(c.Update)
		}
		if c.State == loop.StateDone {
			s.end(c.handle, c.Result, nil)
		}
	}
	return faults
}

// end notes that the caller knows the end of a handle.
func (s *step) end(h *Handle, r *protocol.Result, err error) {
	s.open--
	if end := s.ends[h]; end != nil {
		end.result, end.err = r, err
		close(end.done)
	}
}
