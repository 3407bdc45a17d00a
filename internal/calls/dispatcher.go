// Package calls is the coordinator's side of a call: it enqueues the calls of a
// step, follows them, and brings each one's result back to the session loop.
//
//	Dispatch ──► Publisher.Put ──► accepted (queued)
//	                                  │ frames: a worker started it (running)
//	                                  ▼
//	             results stream ──► received from NATS, or looked up (done)
//
// Messages of NATS may be lost, so every unfinished call is also looked up now and then. Nothing
// else depends on the process that waits: workers look after lanes in which something waits. A call
// whose context ends is cancelled durably; the dispatcher still waits a moment for its result,
// which says what a worker did.
package calls

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/approval"
	"github.com/toolfleet/toolfleet/internal/codes"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/ports"
	"github.com/toolfleet/toolfleet/internal/signing"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Options of a [Dispatcher]; zero values mean the documented default.
type Options struct {
	// Tracer makes the spans of dispatching; default none.
	Tracer trace.Tracer
	// Meter makes the metrics of calls; default none.
	Meter metric.Meter
	// Logger gets troubles at warn; default none.
	Logger *slog.Logger
	// Signer signs calls; default none.
	Signer *signing.Signer
	// LookAfter is how long a call may be without a result before that is looked up,
	// again and again; default 1 s.
	LookAfter time.Duration
	// CancelWait is how long results are waited for after a cancel; default 5 s. A turn has
	// twice as long, because it waits for the calls that it cancels itself.
	CancelWait time.Duration
}

func (o *Options) withDefaults() Options {
	out := Options{}
	if o != nil {
		out = *o
	}
	if out.Tracer == nil {
		out.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if out.Meter == nil {
		out.Meter = noopmetric.Meter{}
	}
	if out.Logger == nil {
		out.Logger = slog.New(slog.DiscardHandler)
	}
	if out.LookAfter <= 0 {
		out.LookAfter = time.Second
	}
	if out.CancelWait <= 0 {
		out.CancelWait = 5 * time.Second
	}
	return out
}

// connection is the way to the servers of a fleet.
type connection struct {
	nc *nats.Conn
	js jetstream.JetStream
}

// Dispatcher carries calls to workers and results back. It is safe for concurrent use.
type Dispatcher struct {
	connection
	options   Options
	fleet     protocol.Fleet
	publisher *lane.Publisher
	results   *Results
	futures   *futures
	channels  channels
	metrics   *telemetry.CallMetrics
	others    map[protocol.Pool]*Dispatcher // see [Dispatcher.Leave]
	blind     atomic.Bool                   // without the right to see which workers are lost
	laneless  atomic.Bool                   // without the right to look at lanes
	left      sync.WaitGroup                // single calls; see Close
	publish   []trace.SpanStartOption       // of the span of a call that is published
}

var (
	_ loop.Dispatcher  = (*Dispatcher)(nil)
	_ ports.Keeper     = (*Dispatcher)(nil)
	_ ports.Asker      = (*Dispatcher)(nil)
	_ ports.TurnCaller = (*Dispatcher)(nil)
	_ ports.Finder     = (*Dispatcher)(nil)
)

// New opens the streams of a fleet, which must exist.
func New(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, options *Options) (*Dispatcher, error) {
	o := options.withDefaults()
	publisher, err := lane.NewPublisher(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	publisher.Signer = o.Signer
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	logger := o.Logger
	results := NewResults(nc, fleet, func(err error) { logger.WarnContext(ctx, "message not understood", slog.Any("error", err)) })
	d := &Dispatcher{
		options: o, connection: connection{nc, js}, fleet: fleet, publisher: publisher, results: results, metrics: telemetry.NewCallMetrics(o.Meter),
		publish: []trace.SpanStartOption{
			trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(telemetry.Published(wire.CallsStream(fleet))...),
		},
	}
	d.futures = newFutures(d)
	return d, nil
}

// ModelLimits count the requests to models' providers for all processes of the fleet.
func (d *Dispatcher) ModelLimits() *lane.Publisher { return d.publisher }

// Keep implements [ports.Keeper]. What it keeps is read by workers of the default pool.
func (d *Dispatcher) Keep(ctx context.Context, session protocol.SessionID, call protocol.CallID, text string) error {
	return d.keep(ctx, wire.KeptText(session, call), strings.NewReader(text))
}

// KeepMedia implements [ports.Keeper].
func (d *Dispatcher) KeepMedia(ctx context.Context, session protocol.SessionID, call protocol.CallID, data []byte) error {
	return d.keep(ctx, wire.KeptPart(session, call, wire.PartMedia), bytes.NewReader(data))
}

func (d *Dispatcher) keep(ctx context.Context, name string, content io.Reader) error {
	d = d.of(protocol.DefaultPool)
	_, err := natsio.PutObject(ctx, d.js, wire.KeptBucket(d.fleet), name, content)
	return err
}

// Ask implements [ports.Asker]. The question counts as one of pool [protocol.SessionPool].
func (d *Dispatcher) Ask(
	ctx context.Context, session protocol.SessionID, call protocol.CallID, question protocol.Question,
	fits func(protocol.Answer) error, listening func() error,
) (protocol.Answer, error) {
	a := approval.Asked{Pool: protocol.SessionPool, Session: session, Call: call}
	return approval.Put(ctx, d.nc, d.fleet, a, question.ID, fits, listening)
}

// GivenUp implements [ports.TurnCaller]. A turn can be restarted, so its outcome is unknown only if
// a coordinator was lost after it may have begun. A turn also ends if its call was rejected after
// that, if it killed its coordinators, or if one panicked: its caller has that result, and it would
// happen again. Turns that failed otherwise continue, for example if there was no room for the
// journal.
func (d *Dispatcher) GivenUp(ctx context.Context, session protocol.SessionID, id protocol.CallID) (bool, error) {
	result, err := d.publisher.Result(ctx, session, id)
	switch {
	case errors.Is(err, wire.ErrInvalidResult), err == nil && result == nil:
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look whether turn %s is still wanted: %w", id, err)
	}
	switch result.Status {
	case protocol.StatusCancelled, protocol.StatusTimeout, protocol.StatusOutcomeUnknown, protocol.StatusRejected:
		return true, nil
	case protocol.StatusFailed:
		code := result.Error.ErrorType()
		return code == string(protocol.CodeAttemptsExhausted) || code == string(protocol.CodePanic), nil
	case protocol.StatusOK:
	}
	return false, nil
}

// Find implements [ports.Finder]. A call is looked for before its result: it is deleted after that
// was stored.
func (d *Dispatcher) Find(ctx context.Context, pool protocol.Pool, ref protocol.CallRef) (*protocol.Call, *protocol.Result, error) {
	d = d.of(pool)
	call, err := d.publisher.Find(ctx, ref.SessionID, ref.ID)
	if err != nil || call != nil {
		return call, nil, err
	}
	r, err := d.publisher.Result(ctx, ref.SessionID, ref.ID)
	if errors.Is(err, wire.ErrInvalidResult) {
		return nil, unreadable(&protocol.Call{ID: ref.ID, SessionID: ref.SessionID}, err), nil
	}
	if err != nil || r != nil && r.Digest == lane.DigestVoid {
		return nil, nil, err
	}
	return nil, r, nil
}

// Void implements [ports.Finder].
func (d *Dispatcher) Void(ctx context.Context, pool protocol.Pool, lane protocol.Lane, ref protocol.CallRef) error {
	return d.of(pool).publisher.Void(ctx, pool, lane, ref)
}

// how says how the calls of a batch are followed.
type how struct {
	cancelWait time.Duration // see [Options]
	alone      bool          // that a call was not sent is an error, not its result
}

// Dispatch implements [loop.Dispatcher].
func (d *Dispatcher) Dispatch(ctx context.Context, calls []protocol.Call, observe func(loop.Update)) error {
	return d.dispatch(ctx, calls, how{cancelWait: d.options.CancelWait}, observe)
}

// dispatchOwn carries calls of pools that are not left to others.
func (d *Dispatcher) dispatchOwn(ctx context.Context, calls []protocol.Call, how how, observe func(loop.Update)) error {
	if len(calls) == 0 {
		return nil
	}
	ids := make([]protocol.CallID, len(calls))
	seen := make(map[protocol.CallID]bool, len(calls))
	for i := range calls {
		if seen[calls[i].ID] {
			return fmt.Errorf("call %s: %w", calls[i].ID, errTwice)
		}
		ids[i], seen[calls[i].ID] = calls[i].ID, true
	}
	b := &batch{dispatcher: d, how: how, observe: observe, open: map[protocol.CallID]*followed{}, news: make(chan news, 4*len(calls))}
	defer b.abandon(ctx)
	if cause := context.Cause(ctx); errors.Is(cause, loop.ErrDetached) {
		return cause
	}
	again, listen := slices.ContainsFunc(calls, func(c protocol.Call) bool { return c.Again }), ctx
	if again { // also when ctx has ended: what an earlier process sent is to be cancelled
		listen = context.WithoutCancel(ctx)
	}
	watch, err := d.results.Watch(listen, calls[0].SessionID, b.result, b.frame, ids...)
	if err == nil {
		defer watch.Stop()
		var deaf func()
		if deaf, err = b.hear(calls); err == nil {
			defer deaf()
		}
	}
	switch {
	case err == nil:
	case again:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case ctx.Err() == nil:
		return fmt.Errorf("%w: %w: %w", lane.ErrNotSent, ErrUnreachable, err)
	} // else nothing is sent
	if err := b.put(ctx, calls); err != nil {
		return err
	}
	return b.follow(ctx)
}

var errTwice = errors.New("dispatched twice in one step")

// codeOf is the code for which a call could not be published; "" when it was.
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

// put enqueues the calls and settles those that were refused. Calls that an earlier process may
// have sent have their stored results first, and are not sent then. Its error is about a fleet that
// could not be reached for any of them.
func (b *batch) put(ctx context.Context, calls []protocol.Call) error {
	all := make([]*followed, len(calls))
	for i := range calls {
		f := b.dispatcher.begin(ctx, &calls[i])
		f.at, all[i] = i, f
		b.mu.Lock()
		b.open[f.call.ID] = f
		b.mu.Unlock()
	}
	unsent := slices.DeleteFunc(all, func(f *followed) bool {
		known := f.call.Again && b.known(ctx, f)
		if known {
			f.publish.End()
		}
		return known
	})
	if len(unsent) == 0 {
		return nil
	}
	return b.send(ctx, unsent)
}

// send enqueues open calls. Those that meet a full lane or pool are sent again later.
func (b *batch) send(ctx context.Context, all []*followed) error {
	outgoing := make([]lane.Outgoing, len(all))
	for i, f := range all {
		outgoing[i] = lane.Outgoing{Call: f.call, Header: f.header, Followed: true, Turn: func(ctx context.Context) error {
			return b.dispatcher.futures.waitTurn(ctx, f.call, f.since)
		}}
	}
	faults := b.dispatcher.publisher.Enqueue(ctx, outgoing)
	unreachable := 0
	for i, fault := range faults {
		f := all[i]
		if errors.Is(fault, lane.ErrBusy) && b.holdBack(f, fault) {
			continue
		}
		refused := b.dispatcher.sent(ctx, f, fault)
		switch {
		case f.accepted:
			b.observe(loop.Update{CallID: f.call.ID, State: loop.StateQueued})
		case refused != nil:
			b.done(ctx, refused)
		case errors.Is(context.Cause(ctx), loop.ErrDetached): // who runs the session next sends it
		case ctx.Err() != nil && errors.Is(fault, lane.ErrNotSent) && b.how.alone:
			return b.notSent(ctx, f, fault)
		case ctx.Err() != nil && errors.Is(fault, lane.ErrNotSent):
			b.stopUnsent(ctx, f)
		case ctx.Err() != nil:
			// Whether it was accepted is not known; the cancel that follows settles it.
		case errors.Is(fault, lane.ErrFullAgain) && b.known(ctx, f):
		default:
			unreachable++
		}
	}
	if unreachable > 0 {
		return fmt.Errorf("%w: %w", ErrUnreachable, errors.Join(faults...))
	}
	return nil
}

// stopUnsent ends a call whose context ended before it was sent.
func (b *batch) stopUnsent(ctx context.Context, f *followed) {
	r := wire.NewResult(f.call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "the call was stopped before it was sent; it does not run"))
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r = wire.NewResult(f.call, protocol.StatusRejected, protocol.Errorf(protocol.CodeDeadline, "the deadline passed before the call was sent; it does not run"))
	}
	b.done(ctx, &r)
}

// begin starts the spans and metrics of a call that is sent and followed, with the headers that
// carry its trace context.
func (d *Dispatcher) begin(ctx context.Context, call *protocol.Call) *followed {
	spanCtx, span := d.options.Tracer.Start(ctx, telemetry.SpanDispatch(call.Tool))
	if span.IsRecording() {
		span.SetAttributes(attributes(call)...)
	}
	header := nats.Header{}
	publishCtx, publish := d.options.Tracer.Start(spanCtx, telemetry.SpanPublish, d.publish...) //nolint:spancheck // sent ends it
	telemetry.Inject(publishCtx, header)
	d.metrics.Begun(ctx, string(call.Pool), string(call.Tenant))
	return &followed{ //nolint:spancheck // see above
		call: call, header: header, since: time.Now(), span: span, publish: publish, progress: progress{state: loop.StateQueued},
	}
}

// sent notes that a call was enqueued, or not because of a fault. It returns a result if the fleet
// refused the call.
func (d *Dispatcher) sent(ctx context.Context, f *followed, fault error) (refused *protocol.Result) {
	telemetry.Fail(f.publish, fault)
	f.publish.End()
	code := codeOf(fault)
	d.metrics.Sent(ctx, string(f.call.Pool), string(f.call.Tenant), string(code))
	message, after := "", protocol.Millis(0)
	switch code {
	case "":
		f.accepted = true
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
	r := wire.NewResult(f.call, protocol.StatusRejected, protocol.Errorf(code, "%s", message))
	r.Error.RetryAfter = after
	return &r
}

// ended ends the spans and metrics of a call that has a result, and returns the result as the
// caller may believe it.
func (d *Dispatcher) ended(ctx context.Context, f *followed, r *protocol.Result) *protocol.Result {
	if r.Digest == lane.DigestVoid {
		void := wire.NewResult(f.call, protocol.StatusCancelled, protocol.Errorf(protocol.CodeCancelled, "another process has refused the call before it was sent; it was not run"))
		void.FinishedAt = r.FinishedAt
		r = &void
	} else if own := f.call.Digest; own != "" && r.Digest != "" && r.Digest != own {
		other := wire.NewResult(f.call, protocol.StatusRejected, reused(f.call, r))
		other.FinishedAt = r.FinishedAt
		r = &other
	}
	if level := f.call.MinLevel; r.Status == protocol.StatusOK && r.Level != "" && wire.HigherLevel(r.Level, level) != r.Level {
		worse := wire.NewResult(f.call, protocol.StatusFailed, protocol.Errorf(codes.SandboxLevel,
			"the call requires level %s, but worker %s reports that it ran at level %q: its result is ignored, and the call may have had effects",
			level, r.WorkerID, r.Level))
		worse.WorkerID, worse.Attempt = r.WorkerID, r.Attempt
		r = &worse
	}
	if f.span.IsRecording() {
		f.span.SetAttributes(telemetry.KeyStatus.String(string(r.Status)), telemetry.KeyAttempt.Int(r.Attempt),
			telemetry.KeyQueueMS.Float64(r.QueueMS), telemetry.KeyLaneMS.Float64(r.LaneMS), telemetry.KeyRunMS.Float64(r.RunMS))
		f.span.SetAttributes(waited(&r.Waits)...)
		ctx = trace.ContextWithSpan(ctx, f.span) // what is measured then leads to the trace
	}
	if r.Error != nil {
		telemetry.Fail(f.span, r.Error)
	}
	f.span.End()
	d.metrics.Ended(ctx, string(f.call.Pool), string(f.call.Tenant), f.call.Tool, string(r.Status), r.Error.ErrorType(), time.Since(f.since))
	return r
}

// reused is the error of a call whose id belongs to an earlier call with the result r.
func reused(c *protocol.Call, r *protocol.Result) *protocol.Error {
	of := func(tool string) string { return cmp.Or(tool, "a payload") }
	earlier, this := of(r.Tool), of(c.Tool)
	if earlier == this {
		this += " with other arguments"
	}
	return protocol.Errorf(codes.IDReused, "the id %s of session %s belongs to an earlier call of %s; this one, of %s, was not run: give it another id",
		c.ID, c.SessionID, earlier, this)
}

// notSent is the error of a single call whose context ended before the fleet could be reached, if
// it could not.
func (b *batch) notSent(ctx context.Context, f *followed, fault error) error {
	if cause := context.Cause(ctx); !errors.Is(fault, ctx.Err()) {
		return fmt.Errorf("%w: %w: %w", ErrUnreachable, cause, fault)
	}
	return b.dispatcher.notSent(ctx, f.call)
}
