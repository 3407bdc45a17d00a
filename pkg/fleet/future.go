package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/session"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Future is a call that was sent, by this or by another process. It needs no goroutine, and may be
// used by several.
//
// After Close of the client, a future that has ended keeps its result. Wait of any other returns
// [ErrClosed] with [ErrNotSent], if it was not sent, or with [ErrUnknownOutcome]: then its call
// continues, and another client can [Client.Attach] to Ref.
type Future struct {
	ref    protocol.CallRef
	plan   *planned      // nil when attached
	follow *calls.Handle // nil when the call was not sent
	output output

	done    <-chan struct{}
	outcome func() (Result, error) // of a call that has ended; the same for all who wait
}

// Go starts a call and returns without waiting for it: calls of one lane are sent in the order of
// Go. What Policy, Approve and tools that run in this process have to do is done before Go returns.
// Invalid input and other errors are those of [Future.Wait]. When ctx ends, the call is cancelled;
// when the process ends, it continues.
func (c *Client) Go(ctx context.Context, call Call) *Future {
	f, err := c.prepare(ctx, call)
	if f.done != nil {
		return f
	}
	if err == nil && f.plan.call == nil {
		return f.end(resultOf(f.plan.session, f.plan.single), nil)
	}
	return f.started(ctx, c.inner.Dispatcher.Go(ctx, f.plan.call))
}

// notSent has calls that wait for the call rejected. A call without an id gets one, to be named.
func (c *Client) notSent(ref *protocol.CallRef) {
	ref.ID = cmp.Or(ref.ID, wire.RandomCallID())
	c.inner.Dispatcher.NotSent(*ref)
}

// prepare plans a call. The future has ended if that fails.
func (c *Client) prepare(ctx context.Context, call Call) (*Future, error) {
	f := &Future{ref: protocol.CallRef{SessionID: call.Session, ID: call.ID}}
	call, err := c.withDefaults(ctx, call)
	f.ref.SessionID = call.Session
	switch { // before a policy or a person is asked
	case err != nil:
	case ctx.Err() != nil:
		err = fmt.Errorf("call: %w: %w", ErrNotSent, context.Cause(ctx))
	case c.open.Err() != nil:
		err = fmt.Errorf("call: %w: %w", ErrNotSent, ErrClosed)
	default:
		uses := append([]protocol.Use{{Key: protocol.SandboxKey(call.Sandbox)}}, call.Resources...)
		if refusal := session.MayCall(ctx, c.inner,
			&protocol.Call{ID: call.ID, SessionID: call.Session, Tenant: call.Tenant, Resources: uses, After: call.After}); refusal != nil {
			f.ref.ID = cmp.Or(f.ref.ID, wire.RandomCallID()) // calls of others may wait for what has this id
			err = fmt.Errorf("call: %w: %w", ErrNotSent, hidden(refusal))
			return f.end(failed(call.Session, err)), err
		}
	}
	if err == nil {
		f.plan, err = c.plan(ctx, &call)
	}
	if err != nil {
		c.notSent(&f.ref)
		return f.end(failed(call.Session, err)), err
	}
	if f.plan.call != nil {
		f.ref.ID = f.plan.call.ID
	} else if f.plan.single.Error != nil {
		c.notSent(&f.ref)
	}
	return f, nil
}

// end is the future of a call that was not sent.
func (f *Future) end(r Result, err error) *Future {
	done := make(chan struct{})
	close(done)
	f.done, f.outcome = done, func() (Result, error) { return r, err }
	return f
}

// Submit stores a call with the fleet and returns its reference, for [Client.Attach] and
// [Call].After. When Submit returns nil the call will get exactly one result, whatever becomes of
// this process. It is sent after the calls of its lane that [Client.Go] has queued. Errors wrap
// what those of [Client.Call] do; a full lane or pool is not waited for, it is [ErrBusy]. After
// [ErrUnknownOutcome] the call may be stored: submit it again with its ID. A tool that runs in this
// process cannot be submitted. Submitting a call again with its ID does nothing, as long as its
// result is stored.
func (c *Client) Submit(ctx context.Context, call Call) (protocol.CallRef, error) {
	ref, stored := c.submit(ctx, call)
	return ref, stored()
}

// submit queues a call as [Client.Go] does, and returns a function that waits until it is stored.
func (c *Client) submit(ctx context.Context, call Call) (ref protocol.CallRef, stored func() error) {
	f, err := c.prepare(ctx, call)
	switch {
	case err != nil:
	case f.plan.call != nil:
		stored := c.inner.Dispatcher.SendWith(ctx, []protocol.Call{*f.plan.call}, calls.SendOptions{StoreOnly: true})[0]
		return f.ref, func() error { return mayRun(stored.Accepted()) }
	case f.plan.single.Error != nil:
		err = fmt.Errorf("%w: %w", ErrNotSent, f.plan.single.Error)
	default:
		err = fmt.Errorf("%w: tool %q: runs in this process, and cannot be submitted", protocol.ErrInvalidCall, call.Tool)
	}
	return f.ref, func() error { return err }
}

// Attach returns the future of a call that any process has sent. ctx bounds the attaching only. The
// error wraps [ErrNotFound] if the call does not exist or its result is not stored any more.
func (c *Client) Attach(ctx context.Context, ref protocol.CallRef) (*Future, error) {
	if _, err := protocol.ParseCallRef(ref.String()); err != nil {
		return nil, invalid(err)
	}
	return do(ctx, c, nil, func(ctx context.Context) (*Future, error) {
		if err := session.MayFollow(ctx, c.inner, ref.SessionID); err != nil {
			return nil, err
		}
		follow, err := c.inner.Dispatcher.Attach(ctx, ref)
		if err != nil {
			return nil, err
		}
		calls.EndWithRequest(ctx, follow)
		return (&Future{ref: ref}).started(ctx, follow), nil
	})
}

// started is the future of a call that was sent.
func (f *Future) started(ctx context.Context, follow *calls.Handle) *Future {
	f.follow, f.done = follow, follow.Done()
	f.outcome = sync.OnceValues(func() (Result, error) {
		plan := f.plan
		if plan == nil {
			plan = &planned{session: f.ref.SessionID, call: &protocol.Call{ID: f.ref.ID}}
		}
		result, err := follow.Result()
		if err != nil {
			return plan.failed(err)
		}
		return plan.finish(context.WithoutCancel(ctx), result), nil
	})
	f.output.wake = make(chan struct{}, 1)
	follow.Watch(f.output.frame)
	return f
}

// Ref names the call for [Client.Attach].
func (f *Future) Ref() protocol.CallRef { return f.ref }

// Done is closed when Wait returns without waiting: the call has ended or was not sent, or the
// client was closed.
func (f *Future) Done() <-chan struct{} { return f.done }

// Wait returns the result of the call, with errors as [Client.Call]. It returns earlier when ctx
// ends, with the cause; the call continues.
func (f *Future) Wait(ctx context.Context) (Result, error) {
	select {
	case <-f.done:
	default:
		select {
		case <-f.done:
		case <-ctx.Done():
			return Result{}, context.Cause(ctx)
		}
	}
	return f.outcome()
}

// Cancel requests that the call ends as cancelled. It returns nil when the request is stored, or
// when nothing has to be cancelled: the call has ended or was not sent. A stored request means that
// the call will not start, or will be killed, unless it ends first; [Future.Wait] says which. A
// call that is about to be sent is sent first. After Close of the client Cancel returns [ErrClosed]
// for a call that continues.
func (f *Future) Cancel(ctx context.Context) error {
	if f.follow == nil {
		return nil
	}
	select {
	case <-f.done:
	default:
		call := f.follow.Call
		if err := judge.Judge(ctx, judge.Cancel, judge.Object{Kind: judge.Call, ID: string(call.ID), Owner: judge.Owner{Tenant: call.Tenant, By: call.By}}); err != nil {
			return hidden(err)
		}
	}
	return f.follow.Cancel(ctx)
}

// Output is a piece of what a running call writes.
type Output struct {
	Stream  string // stdout or stderr
	Data    []byte
	Attempt int  // the start of the call that wrote it, from 1
	Gap     bool // something before it was lost, or written before it was followed
}

// How many bytes of output wait for the reader of a future, before and after it begins to read.
const (
	maxUnread = 4 << 10
	maxOutput = 1 << 20
)

// Output returns what the call writes while it runs: the loop ends when the call has ended, ctx
// ends or the client is closed; [Future.Wait] says which. Output is live and some may be lost: the
// last 4 KiB wait until Output is called, and 1 MiB while a reader is slow. The [Result] has what
// counts. Several readers share the pieces.
func (f *Future) Output(ctx context.Context) iter.Seq[Output] {
	if f.follow == nil {
		return func(func(Output) bool) {}
	}
	o := &f.output
	o.mu.Lock()
	o.read = true
	o.mu.Unlock()
	return func(yield func(Output) bool) {
		for over := false; !over; {
			select {
			case <-o.wake:
			case <-f.done:
				over = true
			case <-ctx.Done():
				return
			}
			for {
				piece, ok := o.next()
				if !ok {
					break
				}
				if !yield(piece) {
					return
				}
			}
		}
	}
}

// output is the output of a call that its reader has not read.
type output struct {
	wake chan struct{}

	mu     sync.Mutex
	read   bool // there is a reader
	pieces []Output
	size   int
	lost   bool
	frames wire.Frames
}

func (o *output) frame(frame *wire.Frame) {
	o.mu.Lock()
	o.lost = o.frames.Missed(frame) || o.lost
	if frame.Kind != wire.FrameStdout && frame.Kind != wire.FrameStderr {
		o.mu.Unlock()
		return
	}
	limit := maxUnread
	if o.read {
		limit = maxOutput
	}
	for o.size+len(frame.Data) > limit && len(o.pieces) > 0 {
		o.size -= len(o.pieces[0].Data)
		if o.pieces = o.pieces[1:]; len(o.pieces) > 0 {
			o.pieces[0].Gap = true
		} else {
			o.lost = true
		}
	}
	o.pieces = append(o.pieces, Output{Stream: string(frame.Kind), Data: frame.Data, Attempt: frame.Attempt, Gap: o.lost})
	o.size, o.lost = o.size+len(frame.Data), false
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

func (o *output) next() (Output, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.pieces) == 0 {
		return Output{}, false
	}
	first := o.pieces[0]
	o.pieces, o.size = o.pieces[1:], o.size-len(first.Data)
	return first, true
}

// gaps finds out what a reader of the output of several calls has missed.
type gaps struct {
	mu        sync.Mutex
	now, then map[protocol.CallID]*wire.Frames // of the calls that wrote last
}

// maxWriters is of how many calls at least the frames are known that a reader has got. A piece of a
// call that wrote before these has Gap.
const maxWriters = 1024

func (g *gaps) missed(frame *wire.Frame) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.now[frame.CallID]
	if of == nil {
		if of = g.then[frame.CallID]; of == nil {
			of = &wire.Frames{}
		}
		if g.now == nil || len(g.now) >= maxWriters {
			g.then, g.now = g.now, map[protocol.CallID]*wire.Frames{}
		}
		g.now[frame.CallID] = of
	}
	return of.Missed(frame)
}

// output is a frame of output as readers get it.
func (g *gaps) output(frame *wire.Frame) Output {
	return Output{Stream: string(frame.Kind), Data: frame.Data, Attempt: frame.Attempt, Gap: g.missed(frame)}
}

// Stream is a queue of calls that run first in, first out, one at a time. Streams run side by side,
// also on one sandbox; [Stream.Record] and [Stream.Wait] order calls of different streams. The
// queue is in the fleet: it survives this process and every worker, and streams of one sandbox and
// name are the same stream in every process. Get one from a [Client].
//
// A stream orders its calls by nothing but itself: two streams that change the same file of a
// sandbox need an event. Calls without a stream that use the sandbox wait for those of its streams,
// and the other way round, in the order in which they were sent.
type Stream struct {
	client        *Client
	sandbox, name string

	mu    sync.Mutex
	last  protocol.CallRef   // the last call that was sent
	waits []protocol.CallRef // what the next call waits for
}

// Stream returns the stream of a sandbox with a name, both of 1 to 64 letters, digits, '-' and '_'.
// A stream without a sandbox ("") is for payloads and tools of your own: their calls run on any
// worker. An invalid name is reported by the calls of the stream.
func (c *Client) Stream(sandbox, name string) *Stream {
	return &Stream{client: c, sandbox: sandbox, name: name}
}

// Go is [Client.Go] for the next call of the stream. The call uses the stream and nothing else: its
// Sandbox is that of the stream, and it must not name Resources.
func (s *Stream) Go(ctx context.Context, call Call) *Future {
	s.mu.Lock()
	defer s.mu.Unlock()
	call, err := s.next(call)
	if err != nil {
		f := &Future{ref: protocol.CallRef{SessionID: cmp.Or(call.Session, protocol.SessionID(s.sandbox), s.client.sessionOf(ctx)), ID: call.ID}}
		s.client.notSent(&f.ref)
		return f.end(failed(call.Session, err))
	}
	f := s.client.Go(ctx, call)
	if f.follow != nil { // else it was invalid
		s.last, s.waits = f.ref, nil
	}
	return f
}

// Submit is [Client.Submit] for the next call of the stream, as [Stream.Go] makes it. If it was not
// sent, the stream is as before: [Stream.Record] is the call before it, and the next call waits for
// the events that this one was to wait for.
func (s *Stream) Submit(ctx context.Context, call Call) (protocol.CallRef, error) {
	s.mu.Lock()
	call, err := s.next(call)
	if err != nil {
		s.mu.Unlock()
		return protocol.CallRef{}, err
	}
	last, waits := s.last, s.waits
	ref, stored := s.client.submit(ctx, call)
	s.last, s.waits = ref, nil
	s.mu.Unlock()
	if err = stored(); errors.Is(err, ErrNotSent) || errors.Is(err, protocol.ErrInvalidCall) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.last == ref { // else a later call was sent, which has these events behind it or rejects them
			s.last = last
		}
		s.wait(waits...)
	}
	return ref, err
}

// Record returns the event of all calls that this value has sent so far, or may have sent: the last
// of them, for [Stream.Wait] of any stream, also in another process. It is the zero value if none
// was sent.
func (s *Stream) Record() protocol.CallRef {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Wait has the next call of this value, and so all later ones, wait for events of any stream: calls
// that [Stream.Record] or [Future.Ref] returned, which must end with status ok. It returns at once.
// The next call is rejected with [protocol.CodeAfterUnmet] if one of them ends otherwise, was not
// sent, or has not ended in time, see [Call].After; later calls run. The zero value is ignored.
func (s *Stream) Wait(events ...protocol.CallRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wait(events...)
}

// wait adds events that the next call waits for; the lock is held.
func (s *Stream) wait(events ...protocol.CallRef) {
	for _, ref := range events {
		if ref != (protocol.CallRef{}) && !slices.Contains(s.waits, ref) {
			s.waits = append(s.waits, ref)
		}
	}
}

// next makes a call the next one of the stream; the lock is held.
func (s *Stream) next(call Call) (Call, error) {
	_, err := protocol.ParseSessionID(s.name)
	switch {
	case err != nil:
		return call, fmt.Errorf("%w: stream name: %w", protocol.ErrInvalidCall, err)
	case len(call.Resources) > 0:
		return call, fmt.Errorf("%w: resources: a call of a stream uses the stream only", protocol.ErrInvalidCall)
	case call.Sandbox != "" && call.Sandbox != s.sandbox:
		return call, fmt.Errorf("%w: sandbox %q: must be %q, that of the stream", protocol.ErrInvalidCall, call.Sandbox, s.sandbox)
	}
	call.Sandbox = s.sandbox
	call.After = append(slices.Clone(call.After), s.waits...)
	call.Resources = []protocol.Use{{Key: wire.StreamKey(s.sandbox, s.name), Access: protocol.Exclusive}}
	return call, nil
}
