package calls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var (
	// ErrClosed says that the client of the fleet is closed.
	ErrClosed = errors.New("the client is closed")
	// ErrNoCall says that a call has no result and is not stored.
	ErrNoCall = operator.ErrNoCall
	// ErrUnreachable is wrapped by errors about a fleet that did not answer.
	ErrUnreachable = errors.New("the fleet cannot be reached")
)

// Handle is a call that was sent, or waits to be sent. It needs no goroutine, and may be used by
// several.
type Handle struct {
	Call *protocol.Call

	table  *table
	group  *group
	done   chan struct{} // closed when result and err are set
	result *protocol.Result
	err    error

	// The lock of the table guards the rest.
	changed   chan struct{} // closed at the next change of the state; nil if nothing waits for that
	state     handleState
	accepted  bool // the fleet has it
	cancelled bool // a request to cancel it is stored
	since     time.Time
	span      trace.Span
	queued
	lookups
	progress
	watch  *Watch            // nil until it is opened
	frames func(*wire.Frame) // gets the frames; may be nil
}

type handleState uint8

const (
	handleQueued  handleState = iota // not sent yet
	handleSending                    // a sender has it
	handleSent                       // it may be stored
	handleDone
)

// SendOptions say how calls are sent and followed.
type SendOptions struct {
	// Observe gets each change of a call: progress, and once a change with State
	// [loop.StateDone] as the handle ends. It is called with a lock held, so it must neither block
	// nor use a handle. With nil only the result is looked for.
	Observe func(*Handle, loop.Update)
	// Frames gets the live frames of the calls. It must not block; nil ignores them.
	Frames func(*wire.Frame)
	// Findable says that the call can be found by its id while it has no result, see
	// [lane.Outgoing].
	Findable bool
	// StoreOnly ends the handle once its call is stored, without a result. A full lane or pool is
	// not waited for.
	StoreOnly bool
	// UnsentResult makes a result of the end of the context before a call was sent, instead of an
	// error that wraps [lane.ErrNotSent].
	UnsentResult bool
	// CancelWait replaces that of [Options].
	CancelWait time.Duration

	step       *step                                       // observes the handles; nil if a program does
	waited     bool                                        // a caller waits for the handles, and sends them
	inline     bool                                        // that caller sends in its own goroutine
	quiet      bool                                        // Observe gets the end alone
	copyResult func(context.Context, *protocol.Call) error // before the call is sent; nil does nothing
}

// group is the handles of one Send in one table, without handles that another Send holds now.
// Their context ends them together.
type group struct {
	SendOptions
	ctx     context.Context //nolint:containedctx // its end stops the calls
	stop    func() bool     // ends the wait for the end of ctx
	handles []*Handle
	open    int  // handles that have not ended
	sending int  // handles that a sender has
	due     bool // the deadlines of the calls have passed
}

// SendWith queues calls behind those of their lanes that were queued before, and returns a handle
// for each. It does not wait, and the calls must not be changed any more. The end of ctx stops the
// calls, see the package comment.
func (d *Dispatcher) SendWith(ctx context.Context, calls []protocol.Call, o SendOptions) []*Handle {
	handles, _ := d.send(ctx, calls, o)
	return handles
}

// send is [Dispatcher.SendWith]. The handles of held join those of the calls. A caller that waits
// calls serve, unless it is nil, which sends calls.
func (d *Dispatcher) send(ctx context.Context, calls []protocol.Call, o SendOptions, held ...*Handle) (handles []*Handle, serve func()) {
	calls = wire.ApplyFlow(ctx, calls)
	o.CancelWait = cmp.Or(o.CancelWait, d.options.CancelWait)
	handles = make([]*Handle, len(calls))
	if len(d.others) == 0 {
		for i := range calls {
			handles[i] = d.begin(ctx, &calls[i])
		}
		all := handles
		if len(held) > 0 {
			all = slices.Concat(handles, held)
		}
		return handles, d.table.queue(&group{SendOptions: o, ctx: ctx, handles: all, open: len(all)}) //nolint:contextcheck // that of the group
	}
	o.inline, o.copyResult = false, d.copyResult
	groups := map[*table]*group{}
	join := func(h *Handle) {
		g := groups[h.table]
		if g == nil {
			g = &group{SendOptions: o, ctx: ctx}
			groups[h.table] = g
		}
		g.handles, g.open = append(g.handles, h), g.open+1
	}
	for i := range calls {
		handles[i] = d.of(calls[i].Pool).begin(ctx, &calls[i])
		join(handles[i])
	}
	for _, h := range held {
		join(h)
	}
	for t, g := range groups {
		t.queue(g) //nolint:contextcheck // that of the group
	}
	return handles, nil
}

// hold moves a handle to another group, whose observer gets what is reported from now on, and a
// question or an end that is there. The lock is held.
func (t *table) hold(h *Handle, g *group) {
	last := h.group
	if h.state == handleDone {
		h.group = g
		t.report(h, loop.Update{State: loop.StateDone, Result: h.result, Times: h.seen()})
		g.open--
		return
	}
	t.report(h, loop.Update{State: stateMoved})
	if h.group = g; h.state == handleSending {
		last.sending, g.sending = last.sending-1, g.sending+1
	}
	last.handles = slices.DeleteFunc(slices.Clone(last.handles), func(other *Handle) bool { return other == h })
	if last.open--; last.open == 0 && last.stop != nil {
		last.stop()
	}
	t.cancelGroup(last) // which may have waited for this one
	if h.question != nil {
		t.report(h, loop.Update{State: loop.StateRunning, Question: h.question})
	}
}

// Go is [Dispatcher.SendWith] for one call, which others may attach to.
func (d *Dispatcher) Go(ctx context.Context, call *protocol.Call) *Handle {
	return d.SendWith(ctx, []protocol.Call{*call}, SendOptions{Findable: true})[0]
}

// begin returns the handle of a call with its spans and metrics, and the headers that carry its
// trace context.
func (d *Dispatcher) begin(ctx context.Context, call *protocol.Call) *Handle {
	spanCtx, span := d.options.Tracer.Start(ctx, telemetry.SpanDispatch(call.Tool))
	if span.IsRecording() {
		span.SetAttributes(attributes(call)...)
	}
	header := nats.Header{}
	publishCtx, publish := d.options.Tracer.Start(spanCtx, telemetry.SpanPublish, d.publish...) //nolint:spancheck // end ends it
	telemetry.Inject(publishCtx, header)
	d.metrics.Begun(ctx, string(call.Pool), string(call.Tenant))
	return &Handle{ //nolint:spancheck // see above
		Call: call, table: d.table, done: make(chan struct{}), since: time.Now(), span: span, queued: queued{header: header, publish: publish},
	}
}

// Attach follows a call that any process has sent. The error wraps [ErrNoCall] if it has no result
// and is not stored; the result of such a call may have been deleted.
func (d *Dispatcher) Attach(ctx context.Context, ref protocol.CallRef) (*Handle, error) {
	for _, part := range d.parts() {
		h, err := part.attach(ctx, ref)
		if h != nil || err != nil {
			return h, err
		}
	}
	return nil, fmt.Errorf("%w: %s: it has no result and does not wait", ErrNoCall, ref)
}

func (d *Dispatcher) attach(ctx context.Context, ref protocol.CallRef) (*Handle, error) {
	t := d.table
	h := d.begin(ctx, &protocol.Call{ID: ref.ID, SessionID: ref.SessionID, Pool: protocol.DefaultPool})
	h.publish.End()
	h.state, h.group = handleSent, &group{ctx: t.ctx, stop: func() bool { return true }, handles: []*Handle{h}, open: 1}
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		return nil, ErrClosed
	}
	t.open[h] = true
	t.mu.Unlock()
	found, err := h.find(ctx)
	for tries := 1; tries < findTries && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil; tries++ {
		found, err = h.find(ctx) // the server is busy
	}
	if err != nil || !found {
		t.mu.Lock()
		t.end(h, nil, err)
		t.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w: %w", ErrUnreachable, err)
		}
		return nil, err // nil if it is not in this part
	}
	return h, nil
}

// findTries is how often an attached call is looked for while the server does not answer in time.
const findTries = 5

// find looks where an attached call is: it has a result, or is stored. A call ends in between, so
// the result is looked up once more.
func (h *Handle) find(ctx context.Context) (found bool, err error) {
	t := h.table
	if err := t.follow(ctx, h); err != nil {
		return false, err
	}
	for range 2 {
		r, err := t.d.publisher.Result(ctx, h.Call.SessionID, h.Call.ID)
		if errors.Is(err, wire.ErrInvalidResult) {
			r, err = unreadable(h.Call, err), nil
		}
		if r != nil && err == nil {
			h.onResult(r)
			return true, nil
		}
		if err != nil {
			return false, err
		}
		call, err := t.d.publisher.Find(ctx, h.Call.SessionID, h.Call.ID)
		if err != nil {
			return false, err
		}
		if call != nil {
			t.mu.Lock()
			defer t.mu.Unlock()
			h.Call = call
			t.schedule(h)
			return true, nil
		}
	}
	return false, nil
}

// Done is closed when the handle has ended.
func (h *Handle) Done() <-chan struct{} { return h.done }

// Result is the result of a call whose handle has ended, or why there is none.
func (h *Handle) Result() (*protocol.Result, error) { return h.result, h.err }

// Accepted returns when the fleet has the call. An error says why it is not known to have it; that
// of a call that was refused wraps [lane.ErrNotSent].
func (h *Handle) Accepted() error {
	accepted := false
	h.await(nil, func() bool {
		accepted = h.accepted
		return accepted || h.state == handleDone
	})
	switch {
	case accepted:
		return nil
	case h.result != nil && notRun(h.result, nil):
		return fmt.Errorf("%w: %w", lane.ErrNotSent, h.result.Error)
	}
	return h.err
}

// await returns true once ready does, which is called with the lock held after each change of the
// state, or false when ended is closed.
func (h *Handle) await(ended <-chan struct{}, ready func() bool) bool {
	for {
		h.table.mu.Lock()
		is := ready()
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		h.table.mu.Unlock()
		if is {
			return true
		}
		select {
		case <-changed:
		case <-ended:
			return false
		}
	}
}

// signalChange wakes every goroutine that waits for a state of the handle; the lock is held.
func (h *Handle) signalChange() {
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Watch passes on the live frames of the call. frame must not block.
func (h *Handle) Watch(frame func(*wire.Frame)) {
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	h.frames = frame
}

// Detach ends the handle with [loop.ErrDetached], and leaves the call to itself.
func (h *Handle) Detach() {
	h.table.mu.Lock()
	defer h.table.mu.Unlock()
	h.table.detach(h, loop.ErrDetached)
}

type requestKey struct{}

// WithRequest returns a context for one request of a client, until its end: a server answers many
// requests about a call that lasts for days, and follows it for none that has ended.
func WithRequest(ctx context.Context) (_ context.Context, end context.CancelFunc) {
	request, end := context.WithCancel(context.WithoutCancel(ctx))
	return context.WithValue(ctx, requestKey{}, request), end
}

// EndWithRequest detaches a handle at the end of the request of a context, if it has one.
func EndWithRequest(ctx context.Context, h *Handle) {
	if request, is := ctx.Value(requestKey{}).(context.Context); is {
		context.AfterFunc(request, h.Detach) //nolint:contextcheck // that of the request ends
	}
}

// Cancel requests that the call ends as cancelled. Once it returns nil the request is stored, or
// the call has ended, or was not sent because its lane or pool is full, or because it waits for a
// call that is being sent. A call that is about to be sent is sent first: a request before it would
// have no effect, and others may wait for its result.
func (h *Handle) Cancel(ctx context.Context) error {
	t, state := h.table, handleQueued
	if !h.await(ctx.Done(), func() bool {
		if h.state == handleQueued && !h.Call.Again && t.isBlocked(h) {
			r := wire.NewResult(h.Call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "the call was cancelled before it was sent; it does not run"))
			t.end(h, &r, nil)
			t.wake(laneOf(h.Call))
		}
		state = h.state
		return state == handleSent || state == handleDone
	}) {
		return context.Cause(ctx)
	}
	if state == handleDone {
		if errors.Is(h.err, ErrClosed) && !errors.Is(h.err, lane.ErrNotSent) {
			return ErrClosed // its call continues
		}
		return nil
	}
	if err := t.d.publisher.Cancel(ctx, h.Call); err != nil {
		return t.d.unreachableError(ctx, err)
	}
	return nil
}

// table is the handles of a dispatcher. Results arrive by the subscriptions of their sessions, and
// one goroutine looks up results that may have been missed.
type table struct {
	d       *Dispatcher
	ctx     context.Context //nolint:containedctx // ends when the dispatcher is closed
	cancel  context.CancelCauseFunc
	sending context.Context //nolint:containedctx // ends when the dispatcher begins to close
	halt    context.CancelCauseFunc
	group   sync.WaitGroup

	mu   sync.Mutex
	open map[*Handle]bool
	unsent
	before
	polling  bool
	asking   bool      // workers are asked what calls wait for
	reading  bool      // heartbeats are read
	read     time.Time // when that began last
	closed   bool
	finished chan struct{} // closed when the table is closed and no handle is open
}

func newTable(d *Dispatcher) *table {
	t := &table{
		d: d, open: map[*Handle]bool{}, finished: make(chan struct{}),
		unsent: unsent{lanes: map[poolLane][]*Handle{}, uploads: make(chan struct{}, maxUploads)},
		before: before{trials: map[protocol.CallRef]*trial{}, failed: map[protocol.CallRef]bool{}, parked: map[poolLane]*time.Timer{}},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // of the dispatcher's whole life
	t.sending, t.halt = context.WithCancelCause(t.ctx)
	return t
}

func refOf(c *protocol.Call) protocol.CallRef {
	return protocol.CallRef{SessionID: c.SessionID, ID: c.ID}
}

// end ends a handle; the lock is held.
func (t *table) end(h *Handle, r *protocol.Result, err error) {
	if h.state == handleDone {
		return
	}
	if h.state == handleSending && r != nil && !h.accepted && !h.Call.Again { // its result is there before the answer of the server
		t.report(h, loop.Update{State: loop.StateQueued})
	}
	h.state = handleDone
	delete(t.open, h)
	if h.watch != nil {
		h.watch.Stop()
	}
	if questions := h.questions; questions != nil {
		t.group.Go(func() { _ = questions.Unsubscribe() }) // fails only when the connection is closed
	}
	ctx := h.group.ctx
	if h.accepted && !h.group.StoreOnly {
		t.d.publisher.Ended(h.Call, r)
	}
	h.publish.End()
	if r != nil {
		r = t.d.finishCall(ctx, h, r)
	} else {
		h.span.End()
		t.d.metrics.Left(ctx, string(h.Call.Pool), string(h.Call.Tenant))
	}
	h.result, h.err = r, err
	if h.trial {
		h.trial = false
		t.endTrial(refOf(h.Call), notRun(r, err))
	}
	close(h.done)
	h.signalChange()
	t.report(h, loop.Update{State: loop.StateDone, Result: r, Times: h.seen()})
	if h.group.open--; h.group.open == 0 && h.group.stop != nil {
		h.group.stop()
	}
	t.finish()
}

// observed reports whether there is an observer of what happens before the end.
func (h *Handle) observed() bool { return h.group.Observe != nil && !h.group.quiet }

// report passes a change of a call to its observer; the lock is held.
func (t *table) report(h *Handle, u loop.Update) {
	if h.group.Observe != nil && (h.observed() || u.State == loop.StateDone || u.State == stateMoved) {
		u.CallID = h.Call.ID
		h.group.Observe(h, u)
	}
}

// detach ends a handle whose call continues, or is sent by the next process; the lock is held.
func (t *table) detach(h *Handle, cause error) {
	queued := h.state == handleQueued
	t.end(h, nil, cause)
	if queued {
		t.wake(laneOf(h.Call))
	}
}

// closeWait bounds the time of [Dispatcher.Close].
const closeWait = 5 * time.Second

// Close ends all handles with [ErrClosed]; their calls continue. Requests to cancel calls whose
// contexts have ended are stored first, which takes a few seconds at most.
func (d *Dispatcher) Close() { d.table.close() }

func (t *table) close() {
	t.halt(ErrClosed)
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.group.Wait()
		return
	}
	for h := range t.open {
		if h.group.ctx.Err() != nil { // a moment ago
			t.stop(h.group)
		}
	}
	t.closed = true
	for h := range t.open {
		if h.state == handleQueued {
			t.end(h, nil, notSentError(h.Call, ErrClosed))
		}
	}
	t.endOpen(func(h *Handle) bool { return h.group.ctx.Err() == nil }) // the others are being cancelled
	t.finish()
	t.mu.Unlock()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-t.finished:
	case <-limit.C:
	}
	t.cancel(ErrClosed)
	t.mu.Lock()
	t.endOpen(func(*Handle) bool { return true })
	t.mu.Unlock()
	t.group.Wait()
}

// endOpen ends the open handles whose calls were sent, with [ErrClosed]; senders end the others.
// The lock is held.
func (t *table) endOpen(which func(*Handle) bool) {
	for h := range t.open {
		if h.state == handleSent && which(h) {
			t.end(h, nil, fmt.Errorf("call %s: %w", h.Call.ID, ErrClosed))
		}
	}
}

// finish notes that the table is closed and empty; the lock is held.
func (t *table) finish() {
	if t.closed && len(t.open) == 0 {
		select {
		case <-t.finished:
		default:
			close(t.finished)
		}
	}
}
