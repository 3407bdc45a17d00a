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

// Dispatch implements [loop.Dispatcher].
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
			return nil, d.notSent(ctx, call)
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
		return nil, maySent(ctx, call)
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

// Submit stores a call with the fleet, in the order of [Dispatcher.Send], without following it.
func (d *Dispatcher) Submit(ctx context.Context, call *protocol.Call) error {
	return d.Send(ctx, []protocol.Call{*call}, SendOptions{StoreOnly: true})[0].Accepted()
}

// step is calls whose caller waits for them.
type step struct {
	handles []*Handle
	open    int           // handles that have not ended, as far as the caller knows
	wake    chan struct{} // has room while the caller knows of all changes

	size int // the number of changes that wait at most, in addition to ends

	mu      sync.Mutex
	changes []change
}

// change is an update that the caller of a step has not got yet.
type change struct {
	handle *Handle
	loop.Update
}

// sendAndWait sends calls whose caller waits for them.
func (d *Dispatcher) sendAndWait(ctx context.Context, calls []protocol.Call, o SendOptions) *step {
	s := &step{wake: make(chan struct{}, 1), open: len(calls), size: maxChanges * len(calls)}
	o.waited, o.Observe = true, s.add
	var serve func()
	if s.handles, serve = d.send(ctx, calls, o); serve != nil {
		serve()
	}
	return s
}

// maxChanges is how many changes of a call, in addition to its end, wait for the caller of a step
// on average; more are dropped.
const maxChanges = 16

func (s *step) add(h *Handle, u loop.Update) {
	s.mu.Lock()
	if u.State == loop.StateDone || len(s.changes) < s.size {
		s.changes = append(s.changes, change{h, u})
	}
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *step) next() []change {
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
		if faults = s.pass(nil, observe); len(faults) == 0 {
			continue
		}
		for _, h := range s.handles {
			h.await(nil, func() bool {
				return h.state != handleSending && (h.state != handleQueued || h.table.waits(h))
			})
		}
		faults = s.pass(faults, observe)
		for _, h := range s.handles {
			h.Detach()
		}
		return faults
	}
	return nil
}

// pass passes on the changes that are there, and adds the errors of handles.
func (s *step) pass(faults []error, observe func(loop.Update)) []error {
	for _, c := range s.next() {
		if c.State == loop.StateDone {
			s.open--
			if c.handle.err != nil {
				faults = append(faults, c.handle.err)
				continue
			}
		}
		if observe != nil {
			observe(c.Update)
		}
	}
	return faults
}
