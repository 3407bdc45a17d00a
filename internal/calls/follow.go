package calls

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/genaiconv"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// answeredWithin is how long after the result of a call the end of its question may arrive: each
// has a subscription of its own.
const answeredWithin = 50 * time.Millisecond

// batch is the calls of one Dispatch. Its callbacks only pass news on; everything
// else happens in the goroutine of the caller.
type batch struct {
	dispatcher *Dispatcher
	how        how
	observe    func(loop.Update)
	news       chan news
	fault      error       // the fleet failed: nothing more comes
	wondered   time.Time   // when it was asked last who could run what waits
	doubting   atomic.Bool // heartbeats are read
	heldBack   heldBack
	looked     int // see nextLooked

	mu   sync.Mutex // guards open, and heard of each: callbacks ask whether a call is theirs
	open map[protocol.CallID]*followed
}

// followed is a call without a result.
type followed struct {
	at            int // in the step
	call          *protocol.Call
	header        nats.Header
	since         time.Time // when it was published
	heard         time.Time // when its worker last reported something
	span, publish trace.Span
	progress
}

// progress is how far a call is, as last reported.
type progress struct {
	state     loop.State
	accepted  bool
	cancelled bool    // a request to cancel it is stored
	waits     string  // what for
	taken     bool    // a worker has it, which says what it waits for
	asking    bool    // its question is not answered
	attempt   attempt // the one that runs
}

// news is a result, a frame, a question of a call, the reason why calls wait, or a report on silent
// workers; exactly one is set.
type news struct {
	result   *protocol.Result
	frame    *wire.Frame
	asked    *asked
	waits    map[protocol.CallID]string
	attempts map[protocol.CallID]attempt
}

// asked is a call's question to a person, or the outcome of one; one of the two is set.
type asked struct {
	call     protocol.CallID
	question *protocol.Question
	answered *protocol.Answer
}

// result takes a result from NATS. When the channel is full it is dropped, to be
// found by looking.
func (b *batch) result(r *protocol.Result) {
	if b.mine(r.CallID) {
		b.tell(news{result: r})
	}
}

func (b *batch) frame(f *wire.Frame) {
	b.mu.Lock()
	mine := b.open[f.CallID]
	if mine != nil {
		mine.heard = time.Now()
	}
	b.mu.Unlock()
	if (f.Kind == wire.FrameStarted || f.Kind == wire.FrameWaiting) && mine != nil {
		b.tell(news{frame: f})
	}
}

// hear listens to what calls of MCP servers ask, which others never do.
func (b *batch) hear(calls []protocol.Call) (stop func(), err error) {
	var all []*nats.Subscription
	stop = func() {
		for _, subscription := range all {
			_ = subscription.Unsubscribe() // fails only when the connection is closed
		}
	}
	for i := range calls {
		c := &calls[i]
		if wire.KindOf(c.Payload) != wire.KindMCPCall {
			continue
		}
		subscription, err := b.dispatcher.nc.Subscribe(wire.QuestionSubject(b.dispatcher.fleet, c.Pool, c.SessionID, c.ID), func(message *nats.Msg) {
			if question, err := wire.DecodeQuestion(message.Data); err == nil {
				b.tell(news{asked: &asked{call: c.ID, question: &question}})
			} else if answered, err := wire.DecodeAnswer(message.Data); err == nil {
				b.tell(news{asked: &asked{call: c.ID, answered: &answered}})
			} // else the worker declines it
		})
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, subscription)
	}
	return stop, nil
}

func (b *batch) tell(n news) {
	select {
	case b.news <- n:
	default:
	}
}

func (b *batch) mine(id protocol.CallID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open[id] != nil
}

// follow waits for every result, then for as long as ctx and the time after a cancel allow.
func (b *batch) follow(ctx context.Context) error {
	if b.wait(ctx) {
		return b.fault
	}
	if cause := context.Cause(ctx); errors.Is(cause, loop.ErrDetached) {
		return cause
	}
	for _, f := range b.takeHeldBack() {
		if b.how.alone {
			return b.dispatcher.notSent(ctx, f.call)
		}
		b.stopUnsent(ctx, f)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && b.overdue(ctx) {
		return b.fault
	}
	wait := b.cancelWait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) { // the caller's time is over
		wait = b.how.cancelWait
		if !b.dispatcher.nc.IsConnected() {
			wait = min(wait, time.Second)
		}
	}
	if errors.Is(context.Cause(ctx), ErrClosed) { // the connection ends soon
		wait = min(wait, time.Second)
	}
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	for _, f := range slices.Backward(b.unfinished()) { // the last first, so that none starts because one before it was stopped
		if err := b.dispatcher.publisher.Cancel(after, f.call); err != nil {
			b.dispatcher.options.Logger.WarnContext(ctx, "call cannot be cancelled",
				slog.String("call_id", string(f.call.ID)), slog.Any("error", err))
		} else {
			f.cancelled = true
		}
	}
	b.look(after)
	if b.wait(after) {
		return b.fault
	}
	for _, f := range b.unfinished() {
		if b.how.alone && !f.accepted && !f.cancelled {
			return maySent(ctx, f.call)
		}
		r := wire.NewResult(f.call, protocol.StatusOutcomeUnknown, b.dispatcher.unanswered(context.WithoutCancel(ctx), f))
		b.done(context.WithoutCancel(ctx), &r)
	}
	return nil
}

// overdue waits for the fleet to end the calls by their own deadlines, if all of them have one: a
// cancel at that moment would race with these, for one outcome or another. It reports whether
// nothing is open.
func (b *batch) overdue(ctx context.Context) bool {
	var last time.Time
	for _, f := range b.unfinished() {
		if f.call.Deadline.IsZero() {
			return false
		}
		if f.call.Deadline.After(last) {
			last = f.call.Deadline
		}
	}
	const part = 5
	limit := b.how.cancelWait / part
	answered, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(max(time.Until(last), 0), limit)+limit)
	defer cancel()
	return b.wait(answered)
}

// cancelWait is how long results are waited for after a cancel, see [Options].
func (b *batch) cancelWait() time.Duration {
	wait := b.how.cancelWait
	if slices.ContainsFunc(b.unfinished(), func(f *followed) bool { return f.call.Pool == protocol.SessionPool }) {
		wait *= 2
	}
	return wait
}

// wait handles news until nothing is open, or the batch has a fault; it reports false when ctx
// ended first.
func (b *batch) wait(ctx context.Context) bool {
	look := time.NewTicker(b.dispatcher.options.LookAfter)
	defer look.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	wondering, stop := context.WithCancel(ctx)
	defer stop()
	for len(b.open) > 0 && b.fault == nil {
		select {
		case n := <-b.news:
			b.handle(ctx, n)
		case <-b.heldBack.again:
			b.fault = b.sendAgain(ctx)
		case <-look.C:
			b.look(ctx)
			b.wonder(wondering, &group)
			b.doubt(wondering, &group)
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (b *batch) handle(ctx context.Context, n news) {
	if n.result != nil {
		if f := b.open[n.result.CallID]; f != nil && f.asking {
			f.asking = false
			time.AfterFunc(answeredWithin, func() { b.tell(news{result: n.result}) })
			return
		}
		b.done(ctx, n.result)
		return
	}
	if n.asked != nil {
		if f := b.open[n.asked.call]; f != nil {
			f.asking = n.asked.question != nil
			b.observe(loop.Update{CallID: f.call.ID, State: loop.StateRunning, Question: n.asked.question, Answered: n.asked.answered})
		}
		return
	}
	if n.frame == nil {
		b.reportWaits(n.waits)
		b.believe(n.attempts)
		return
	}
	f := b.open[n.frame.CallID]
	if f == nil {
		return
	}
	if n.frame.Kind == wire.FrameWaiting {
		f.taken = true
		b.reportWaits(map[protocol.CallID]string{f.call.ID: string(n.frame.Data)})
		return
	}
	f.state, f.attempt = loop.StateRunning, attempt{worker: n.frame.WorkerID, number: n.frame.Attempt}
	f.span.AddEvent(telemetry.EventStarted, trace.WithAttributes(
		telemetry.KeyWorkerID.String(string(n.frame.WorkerID)), telemetry.KeyAttempt.Int(n.frame.Attempt)))
	b.observe(loop.Update{CallID: f.call.ID, State: loop.StateRunning, WorkerID: n.frame.WorkerID, Attempt: n.frame.Attempt})
}

// done ends a call; a second result for it changes nothing.
func (b *batch) done(ctx context.Context, r *protocol.Result) {
	f := b.open[r.CallID]
	if f == nil {
		return
	}
	b.close(f, r)
	r = b.dispatcher.ended(ctx, f, r)
	b.observe(loop.Update{CallID: r.CallID, State: loop.StateDone, Result: r})
}

func (b *batch) close(f *followed, r *protocol.Result) {
	b.mu.Lock()
	delete(b.open, f.call.ID)
	b.mu.Unlock()
	if f.accepted {
		b.dispatcher.publisher.Ended(f.call, r)
	}
}

// known ends a call whose result is stored, and reports whether there is one.
func (b *batch) known(ctx context.Context, f *followed) bool {
	r, err := b.dispatcher.publisher.Result(ctx, f.call.SessionID, f.call.ID)
	if err != nil || r == nil {
		return false
	}
	b.done(ctx, r)
	return true
}

// look asks the results stream for every open call.
func (b *batch) look(ctx context.Context) {
	if err := b.dispatcher.publisher.Streams(ctx); err != nil {
		b.fault = fmt.Errorf("%w: %w", ErrUnreachable, err)
		return
	}
	for _, f := range b.nextLooked() {
		r, err := b.dispatcher.stored(ctx, f.call, f.since)
		if err != nil {
			b.dispatcher.options.Logger.DebugContext(ctx, "result cannot be looked up",
				slog.String("call_id", string(f.call.ID)), slog.Any("error", err))
			if r == nil {
				return // without a connection the others fail too
			}
			continue // its value alone cannot be had
		}
		if r != nil {
			b.done(ctx, r)
		}
	}
}

// stored is the result of a call that was sent then; nil when there is none yet. One that cannot be
// read, or was deleted with its stream, is there for good.
func (d *Dispatcher) stored(ctx context.Context, call *protocol.Call, since time.Time) (*protocol.Result, error) {
	return d.readable(ctx, call, since, d.publisher.Result)
}

// recorded is [Dispatcher.stored], and loads no value that is a [wire.Stored].
func (d *Dispatcher) recorded(ctx context.Context, call *protocol.Call, since time.Time) (*protocol.Result, error) {
	return d.readable(ctx, call, since, d.publisher.Recorded)
}

func (d *Dispatcher) readable(
	ctx context.Context, call *protocol.Call, since time.Time, read func(context.Context, protocol.SessionID, protocol.CallID) (*protocol.Result, error),
) (*protocol.Result, error) {
	r, err := read(ctx, call.SessionID, call.ID)
	switch {
	case errors.Is(err, wire.ErrInvalidResult):
		return unreadable(call, err), nil
	case err == nil && r == nil && d.publisher.Lost(ctx, call, since):
		return lostWithStream(call), nil
	}
	return r, err
}

// unreadable is the result of a call whose stored result this version cannot read.
func unreadable(call *protocol.Call, err error) *protocol.Result {
	r := wire.NewResult(call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the call has a result that this coordinator cannot read, as of a newer worker: %v", err))
	return &r
}

// lostWithStream is the result of a call that was deleted with its stream.
func lostWithStream(call *protocol.Call) *protocol.Result {
	r := wire.NewResult(call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the call, or its result, is gone with a stream of the fleet that was deleted and made again; it may have had effects"))
	return &r
}

// maxLooked bounds the results that are looked up in a round.
const maxLooked = 256

// nextLooked returns the calls whose results are looked up next, in turns if there are many.
func (b *batch) nextLooked() []*followed {
	all := b.unfinished()
	if len(all) <= maxLooked {
		return all
	}
	first, _ := slices.BinarySearchFunc(all, b.looked, func(f *followed, at int) int { return f.at - at })
	first = min(first, len(all)-maxLooked)
	if b.looked = 0; first+maxLooked < len(all) {
		b.looked = all[first+maxLooked].at
	}
	return all[first : first+maxLooked]
}

// unfinished returns the open calls that the fleet may have, in the order of the step.
func (b *batch) unfinished() []*followed {
	out := make([]*followed, 0, len(b.open))
	for _, f := range b.open {
		out = append(out, f)
	}
	slices.SortFunc(out, func(x, y *followed) int { return x.at - y.at })
	return out
}

// abandon ends the spans of calls that were given up because the fleet cannot be reached.
func (b *batch) abandon(ctx context.Context) {
	for _, f := range b.unfinished() {
		b.close(f, nil)
		f.span.End()
		b.dispatcher.metrics.Left(ctx, string(f.call.Pool), string(f.call.Tenant))
	}
}

// waited is attributes that say for how long a call waited, and why.
func waited(w *protocol.Waits) (all []attribute.KeyValue) {
	for why, ms := range map[string]float64{
		"not_before_ms": w.NotBeforeMS, "slot_ms": w.SlotMS, "lane_ms": w.LaneMS, "after_ms": w.AfterMS, "limit_ms": w.LimitMS, "rate_ms": w.RateMS, "pause_ms": w.PauseMS,
	} {
		if ms > 0 {
			all = append(all, attribute.Float64(telemetry.KeyWait+why, ms))
		}
	}
	return all
}

func attributes(c *protocol.Call) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		telemetry.KeyCallID.String(string(c.ID)), genaiconv.ConversationID.String(string(c.SessionID)),
		genaiconv.ToolName.String(c.Tool), telemetry.KeyPayload.String(string(wire.KindOf(c.Payload))),
		telemetry.KeyLane.String(string(c.Lane())), telemetry.KeyPool.String(string(c.Pool)),
	}
	if c.Tenant != "" {
		attributes = append(attributes, telemetry.KeyTenant.String(string(c.Tenant)))
	}
	if c.ToolCallID != "" { // else no model asked for it
		attributes = append(attributes, genaiconv.ToolCallID.String(c.ToolCallID))
	}
	if c.Turn > 0 {
		attributes = append(attributes, telemetry.KeyTurn.Int(c.Turn), telemetry.KeyStep.Int(c.Step))
	}
	return attributes
}
