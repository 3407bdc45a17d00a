package calls

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var (
	// ErrClosed says that the client of the fleet is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrNoCall says that a call has no result and is not stored.
	ErrNoCall = operator.ErrNoCall
)

const (
	// maxSenders bounds the goroutines that enqueue and cancel calls of futures.
	maxSenders = 16
	// maxUploads bounds the payloads that are uploaded at the same time, since no message can carry
	// them. A sender that uploads counts no more as one of maxSenders, so that small calls pass.
	maxUploads = 4
	// maxLooks bounds the results that are looked up at the same time.
	maxLooks = 4
	// longestLook is the longest time between two lookups of the result of one future.
	longestLook = 30 * time.Second
)

// Future is a call that is sent, and followed, without a goroutine of its own.
type Future struct {
	Call *protocol.Call

	futures *futures
	ctx     context.Context //nolint:containedctx // its end cancels the call
	done    chan struct{}   // closed when result and err are set
	result  *protocol.Result
	err     error

	// The lock of futures guards the rest.
	*followed
	state futureState
	stop  func() bool // ends the wait for the end of ctx
	due
	watch    func(*wire.Frame) // may be nil
	submit   bool              // it ends when it is stored, without a result; see [Dispatcher.Enqueue]
	tried    chan struct{}     // closed after the next attempt to send it; nil if nothing waits for that
	passed   chan struct{}     // closed when its lane is past it; nil if nothing waits for that
	heldBack error             // why it is to be sent again, after a wait; nil if it is not
	trial    bool              // others that wait for it wait until it was sent
	number   uint64            // of the calls that began
	after    []*trial          // of the calls that it waits for
}

// due is when something is done about a future.
type due struct {
	loading bool // its result is known, and its value is being loaded

	wait   time.Duration // before the next lookup, or before it is sent again to a full lane
	lookAt time.Time
	giveUp time.Time // when it ends as unknown, after a cancel; zero is never
}

type futureState uint8

const (
	futureQueued  futureState = iota // not sent yet
	futureSending                    // a sender has it
	futureSent                       // it may be enqueued
	futureDone
)

// futures are the futures of a dispatcher. Results arrive by the subscriptions of their sessions. A
// few senders enqueue calls, those of one lane in order, and one goroutine looks up results that
// may have been missed.
type futures struct {
	d      *Dispatcher
	ctx    context.Context //nolint:containedctx // ends when the dispatcher is closed
	cancel context.CancelCauseFunc
	group  sync.WaitGroup

	mu       sync.Mutex
	open     map[protocol.CallRef][]*Future
	sessions map[protocol.SessionID]*futureSession
	unsent
	before
	looking bool
	closed  bool
}

// futureSession is the watch of a session that has open futures.
type futureSession struct {
	open  func() (*Watch, error) // once
	watch *Watch                 // nil until it is open
	users int
}

func newFutures(d *Dispatcher) *futures {
	t := &futures{
		d: d, open: map[protocol.CallRef][]*Future{}, sessions: map[protocol.SessionID]*futureSession{}, unsent: unsent{lanes: map[futureLane][]*Future{}, uploads: make(chan struct{}, maxUploads)},
		before: before{trials: map[protocol.CallRef]*trial{}, failed: map[protocol.CallRef]bool{}, parked: map[futureLane]*time.Timer{}},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // of the dispatcher's whole life
	return t
}

// Go enqueues a call, after those of its lane and of its After that were enqueued so before, and
// follows it. It does not wait. When ctx ends the call is cancelled; it ends as unknown if that is
// not answered for the time of [Options].CancelWait.
func (d *Dispatcher) Go(ctx context.Context, call *protocol.Call) *Future {
	return d.queue(ctx, call, false)
}

func (d *Dispatcher) hasResult(ctx context.Context, call *protocol.Call) bool {
	r, err := d.publisher.Result(ctx, call.SessionID, call.ID)
	return err == nil && r != nil
}

// Attach follows a call that any process has sent. The error wraps [ErrNoCall] if it has no result
// and is not stored; the result of such a call may have been deleted.
func (d *Dispatcher) Attach(ctx context.Context, ref protocol.CallRef) (*Future, error) {
	for _, part := range d.parts() {
		f, err := part.attach(ctx, ref)
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, fmt.Errorf("%w: %s: it has no result and does not wait", ErrNoCall, ref)
}

func (d *Dispatcher) attach(ctx context.Context, ref protocol.CallRef) (*Future, error) {
	call := &protocol.Call{ID: ref.ID, SessionID: ref.SessionID, Pool: protocol.DefaultPool}
	t := d.futures
	f := &Future{Call: call, futures: t, ctx: t.ctx, done: make(chan struct{}), state: futureSent, stop: func() bool { return true }}
	f.followed = d.begin(ctx, call)
	f.publish.End()
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, ErrClosed
	}
	t.add(f) //nolint:contextcheck // what it subscribes outlives the caller
	t.mu.Unlock()
	found, err := f.find(ctx)
	for tries := 1; tries < findTries && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; tries++ {
		found, err = f.find(ctx) // the server is busy
	}
	if err != nil || !found {
		t.mu.Lock()
		t.end(f, nil, err)
		t.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return nil, err // nil if it is not in this part
	}
	return f, nil
}

// findTries is how often an attached call is looked for while the server does not answer in time.
const findTries = 5

// find looks where an attached call is: it has a result, or is stored. A call ends in between, so
// the result is looked up once more.
func (f *Future) find(ctx context.Context) (found bool, err error) {
	t := f.futures
	if err := t.listen(ctx, f.Call.SessionID); err != nil {
		return false, err
	}
	for range 2 {
		r, err := t.d.publisher.Result(ctx, f.Call.SessionID, f.Call.ID)
		if errors.Is(err, wire.ErrInvalidResult) {
			r, err = unreadable(f.Call, err), nil
		}
		if r != nil && err == nil {
			t.onResult(r)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		call, err := t.d.publisher.Find(ctx, f.Call.SessionID, f.Call.ID)
		if err != nil {
			return false, err
		}
		if call != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			f.Call, f.call = call, call
			t.schedule(f)
			return true, nil
		}
	}
	return false, nil
}

// Done is closed when the call has ended.
func (f *Future) Done() <-chan struct{} { return f.done }

// Result is the result of a call that has ended, or why there is none.
func (f *Future) Result() (*protocol.Result, error) { return f.result, f.err }

// Cancel requests that the call ends as cancelled. Once it returns nil the request is stored, or
// the call has ended, or was not sent because its lane or pool is full, or because it waits for a
// call that is being sent. A call that is about to be sent is sent first: a request before it would
// have no effect, and others may wait for its result.
func (f *Future) Cancel(ctx context.Context) error {
	for t := f.futures; ; {
		t.mu.Lock()
		if f.state == futureQueued { // an attached call may have no lane
			if at := (futureLane{f.Call.Pool, f.Call.Lane()}); !f.Call.Again && (t.isHeldBack(at) || t.isParked(at)) {
				r := wire.NewResult(f.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "the call was cancelled before it was sent; it does not run"))
				t.end(f, &r, nil)
				t.wake(at)
			}
		}
		state := f.state
		if f.tried == nil {
			f.tried = make(chan struct{})
		}
		tried := f.tried
		t.mu.Unlock()
		switch state {
		case futureSent:
			err := t.d.publisher.Cancel(ctx, f.Call)
			if err != nil {
				err = t.d.whyNot(ctx, err)
			}
			return err
		case futureDone:
			if errors.Is(f.err, ErrClosed) && !errors.Is(f.err, lane.ErrNotSent) {
				return ErrClosed // its call continues
			}
			return nil
		case futureQueued, futureSending:
		}
		select {
		case <-tried:
		case <-f.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Watch passes on the live frames of the call. frame must not block.
func (f *Future) Watch(frame func(*wire.Frame)) {
	f.futures.mu.Lock()
	defer f.futures.mu.Unlock()
	f.watch = frame
}

func refOf(c *protocol.Call) protocol.CallRef {
	return protocol.CallRef{SessionID: c.SessionID, ID: c.ID}
}

// add opens a future; the lock is held.
func (t *futures) add(f *Future) {
	ref := refOf(f.Call)
	t.open[ref] = append(t.open[ref], f)
	s := t.sessions[ref.SessionID]
	if s == nil {
		s = &futureSession{open: sync.OnceValues(func() (*Watch, error) {
			return t.d.results.open(ref.SessionID, t.onResult, func(frame *wire.Frame) { t.onFrame(ref.SessionID, frame) })
		})}
		t.sessions[ref.SessionID] = s
	}
	s.users++
}

// end ends a future; the lock is held.
func (t *futures) end(f *Future, r *protocol.Result, err error) {
	if f.state == futureDone {
		return
	}
	f.state = futureDone
	if f.stop != nil {
		f.stop()
	}
	ref := refOf(f.Call)
	if f.trial {
		f.trial = false
		t.endTrial(ref, notRun(r, err))
	}
	if left := slices.DeleteFunc(slices.Clone(t.open[ref]), func(o *Future) bool { return o == f }); len(left) < len(t.open[ref]) {
		if t.open[ref] = left; len(left) == 0 {
			delete(t.open, ref)
		}
		s := t.sessions[ref.SessionID]
		if s.users--; s.users == 0 {
			delete(t.sessions, ref.SessionID)
			if s.watch != nil {
				s.watch.Stop()
			}
		}
	}
	if f.accepted && !f.submit {
		t.d.publisher.Ended(f.Call, r)
	}
	if r != nil {
		f.result = t.d.ended(f.ctx, f.followed, r)
	} else {
		f.span.End()
		t.d.metrics.Left(f.ctx, string(f.Call.Pool), string(f.Call.Tenant))
	}
	f.err = err
	close(f.done)
}

// listen returns when the results of a session arrive.
func (t *futures) listen(ctx context.Context, session protocol.SessionID) error {
	t.mu.Lock()
	s := t.sessions[session]
	t.mu.Unlock()
	if s == nil {
		return nil // its future has ended
	}
	watch, err := s.open()
	if err != nil {
		return err
	}
	t.mu.Lock()
	if s.watch = watch; t.sessions[session] != s {
		watch.Stop()
	}
	t.mu.Unlock()
	return watch.confirm(ctx)
}

func (t *futures) onResult(r *protocol.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range slices.Clone(t.open[protocol.CallRef{SessionID: r.SessionID, ID: r.CallID}]) {
		t.end(f, r, nil)
	}
}

func (t *futures) onFrame(session protocol.SessionID, frame *wire.Frame) {
	t.mu.Lock()
	var watches []func(*wire.Frame)
	for _, f := range t.open[protocol.CallRef{SessionID: session, ID: frame.CallID}] {
		if frame.Kind == wire.FrameStarted {
			f.followed.state = loop.StateRunning
		}
		if f.watch != nil {
			watches = append(watches, f.watch)
		}
	}
	t.mu.Unlock()
	for _, watch := range watches {
		watch(frame)
	}
}

// schedule has the result of a call looked up; the lock is held.
func (t *futures) schedule(f *Future) {
	if f.state == futureDone {
		return
	}
	f.wait = t.d.options.LookAfter
	f.lookAt = time.Now().Add(f.wait)
	t.startLooking()
}

// startLooking starts the goroutine that looks up results; the lock is held.
func (t *futures) startLooking() {
	if !t.looking && !t.closed && len(t.open) > 0 {
		t.looking = true
		t.group.Go(t.look)
	}
}

// look looks up the results of open futures now and then: each after a second, and then less and
// less often, because a result is seldom missed. After a reconnect all are looked up.
func (t *futures) look() {
	period := time.NewTicker(t.d.options.LookAfter / 4)
	defer period.Stop()
	reconnects := t.d.nc.Stats().Reconnects
	for {
		select {
		case <-period.C:
		case <-t.ctx.Done():
			return
		}
		again := reconnects != t.d.nc.Stats().Reconnects
		reconnects = t.d.nc.Stats().Reconnects
		now := time.Now()
		var due []*Future
		t.mu.Lock()
		if len(t.open) == 0 {
			t.looking = false
			t.mu.Unlock()
			return
		}
		for _, same := range t.open {
			for _, f := range same {
				if f.state != futureSent || f.loading || now.Before(f.lookAt) && !again {
					continue
				}
				f.wait = min(2*f.wait, longestLook)
				if f.lookAt = now.Add(f.wait); !f.giveUp.IsZero() {
					f.lookAt = now
				}
				due = append(due, f)
			}
		}
		t.mu.Unlock()
		t.lookUp(due)
	}
}

func (t *futures) lookUp(due []*Future) {
	if len(due) == 0 {
		return
	}
	if err := t.d.publisher.Streams(t.ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, f := range due {
			t.end(f, nil, fmt.Errorf("%w: %w", ErrUnreachable, err))
		}
		return
	}
	var group errgroup.Group
	group.SetLimit(maxLooks)
	for _, f := range due {
		group.Go(func() error {
			t.lookUpOne(f)
			return nil
		})
	}
	_ = group.Wait() // they return none
}

func (t *futures) lookUpOne(f *Future) {
	t.mu.Lock()
	call, giveUp := f.Call, f.giveUp // which find and a cancel replace
	t.mu.Unlock()
	r, err := t.d.recorded(t.ctx, call, f.since)
	if isLarge(r) && err == nil {
		t.mu.Lock()
		f.loading = true
		t.mu.Unlock()
		t.group.Go(func() { t.load(f, r) }) // the lookups of others do not wait for it
		return
	}
	if err != nil || r == nil {
		if giveUp.IsZero() || time.Now().Before(giveUp) {
			return
		}
		unknown := wire.NewResult(call, protocol.StatusOutcomeUnknown, t.d.unanswered(t.ctx, f.followed))
		r = &unknown
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(f, r, nil)
}

// load ends a future whose result has a large value, once that is loaded. After an error it is
// looked up again.
func (t *futures) load(f *Future, r *protocol.Result) {
	err := t.d.results.load(t.ctx, r)
	if errors.Is(err, wire.ErrInvalidResult) {
		r, err = unreadable(f.Call, err), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.loading = false; err == nil {
		t.end(f, r, nil)
	}
}

// close ends all futures with [ErrClosed]. Their calls continue.
func (t *futures) close() {
	t.cancel(ErrClosed)
	t.mu.Lock()
	t.closed = true
	for _, queue := range t.lanes {
		for _, f := range queue {
			if f.state == futureQueued {
				t.end(f, nil, neverSent(f.Call, ErrClosed))
			}
		}
	}
	for _, f := range slices.Concat(slices.Collect(maps.Values(t.open))...) {
		if f.state == futureSent { // those that are being sent are ended by their senders
			t.end(f, nil, fmt.Errorf("call %s: %w", f.Call.ID, ErrClosed))
		}
	}
	t.mu.Unlock()
	t.group.Wait()
}
