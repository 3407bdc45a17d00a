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
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/toolfleet/toolfleet/internal/calls/channel"
	"github.com/toolfleet/toolfleet/internal/calls/ports"
	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/session/approval"
	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/telemetry/genaiconv"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/internal/wire/signing"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
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
	// Secret returns the secret of the fleet, with which calls prove who has sent them; default
	// none.
	Secret func(ctx context.Context) ([]byte, error)
	// Keys are those whose answers count for what sessions ask; default every answer.
	Keys *signing.Keys
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
	table     *table
	channels  channels
	metrics   *telemetry.CallMetrics
	search    SearchFunc                    // nil without an index
	others    map[protocol.Pool]*Dispatcher // see [Dispatcher.RoutePool]
	publish   []trace.SpanStartOption       // of the span of a call that is published

	cannotReadHeartbeats, cannotReadLanes atomic.Bool // for lack of rights
}

var (
	_ loop.Dispatcher = (*Dispatcher)(nil)
	_ ports.Fleet     = (*Dispatcher)(nil)
)

// New opens the streams of a fleet, which must exist.
func New(ctx context.Context, nc *nats.Conn, fleet protocol.Fleet, options *Options) (*Dispatcher, error) {
	o := options.withDefaults()
	publisher, err := lane.NewPublisher(ctx, nc, fleet)
	if err != nil {
		return nil, err
	}
	publisher.Signer, publisher.Secret = o.Signer, o.Secret
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
	d.table = newTable(d)
	return d, nil
}

// ModelLimits count the requests to models' providers for all processes of the fleet.
func (d *Dispatcher) ModelLimits() *lane.Publisher { return d.publisher }

// StoreText implements [ports.Fleet]. What it stores is read by workers of the default pool.
func (d *Dispatcher) StoreText(ctx context.Context, session protocol.SessionID, call protocol.CallID, text string) error {
	return d.store(ctx, wire.PartObject(session, call, wire.PartText), strings.NewReader(text))
}

// StoreMedia implements [ports.Fleet].
func (d *Dispatcher) StoreMedia(ctx context.Context, session protocol.SessionID, call protocol.CallID, data []byte) error {
	return d.store(ctx, wire.PartObject(session, call, wire.PartMedia), bytes.NewReader(data))
}

func (d *Dispatcher) store(ctx context.Context, name string, content io.Reader) error {
	d = d.of(protocol.DefaultPool)
	_, err := natsio.PutObject(ctx, d.js, wire.KeptBucket(d.fleet), name, content)
	return err
}

// AnswerKeys replaces the Keys of [Options]. It is called before the first call.
func (d *Dispatcher) AnswerKeys(keys *signing.Keys) { d.options.Keys = keys }

// Ask implements [ports.Fleet]. The question counts as one of pool [protocol.SessionPool].
func (d *Dispatcher) Ask(
	ctx context.Context, session protocol.SessionID, call protocol.CallID, question protocol.Question,
	fits func(protocol.Answer) error, listening func() error,
) (protocol.Answer, error) {
	a := approval.Asked{Pool: protocol.SessionPool, Session: session, Call: call}
	return approval.Put(ctx, d.nc, d.fleet, d.options.Keys, a, question.ID, fits, listening)
}

// GivenUp implements [ports.Fleet]. A turn can be restarted, so its outcome is unknown only if
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

// Find implements [ports.Fleet]. A call is looked for before its result: it is deleted after that
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

// Void implements [ports.Fleet].
func (d *Dispatcher) Void(ctx context.Context, pool protocol.Pool, lane protocol.Lane, ref protocol.CallRef) error {
	return d.of(pool).publisher.Void(ctx, pool, lane, ref)
}

// finishCall ends the span and metrics of a call, and returns its result. A result of another call
// with the same id becomes a rejection; one of a lower sandbox level than the call demands, a
// failure.
func (d *Dispatcher) finishCall(ctx context.Context, h *Handle, r *protocol.Result) *protocol.Result {
	if r.Digest == lane.DigestVoid {
		void := wire.NewResult(h.Call, protocol.StatusCancelled,
			protocol.Errorf(protocol.CodeCancelled, "another process has refused the call before it was sent; it was not run"))
		void.FinishedAt = r.FinishedAt
		r = &void
	} else if own := h.Call.Digest; own != "" && r.Digest != "" && r.Digest != own {
		other := wire.NewResult(h.Call, protocol.StatusRejected, reused(h.Call, r))
		other.FinishedAt = r.FinishedAt
		r = &other
	}
	if level := h.Call.MinLevel; r.Status == protocol.StatusOK && r.Level != "" && wire.HigherLevel(r.Level, level) != r.Level {
		worse := wire.NewResult(h.Call, protocol.StatusFailed, protocol.Errorf(codes.SandboxLevel,
			"the call requires level %s, but worker %s reports that it ran at level %q: its result is ignored, and the call may have had effects",
			level, r.WorkerID, r.Level))
		worse.WorkerID, worse.Attempt = r.WorkerID, r.Attempt
		r = &worse
	}
	if h.span.IsRecording() {
		h.span.SetAttributes(telemetry.KeyStatus.String(string(r.Status)), telemetry.KeyAttempt.Int(r.Attempt),
			telemetry.KeyQueueMS.Float64(r.QueueMS), telemetry.KeyLaneMS.Float64(r.LaneMS), telemetry.KeyRunMS.Float64(r.RunMS))
		h.span.SetAttributes(waited(&r.Waits)...)
		ctx = trace.ContextWithSpan(ctx, h.span) // what is measured then leads to the trace
	}
	if r.Error != nil {
		telemetry.Fail(h.span, r.Error)
	}
	h.span.End()
	d.metrics.Ended(ctx, string(h.Call.Pool), string(h.Call.Tenant), h.Call.Tool, string(r.Status), r.Error.ErrorType(), time.Since(h.since))
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

// waited is attributes that say for how long a call waited, and why.
func waited(w *protocol.Waits) (all []attribute.KeyValue) {
	for reason, ms := range wire.WaitsByReason(w) {
		all = append(all, attribute.Float64(telemetry.KeyWait+reason+"_ms", ms))
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

// RoutePool has another dispatcher, which has a connection of its own, carry the calls of a pool.
// It precedes the first call.
func (d *Dispatcher) RoutePool(pool protocol.Pool, to *Dispatcher) {
	if d.others == nil {
		d.others = map[protocol.Pool]*Dispatcher{}
	}
	d.others[pool], to.publisher.Secret = to, d.publisher.Secret // the secret is stored where journals are
}

// of returns the dispatcher of a pool.
func (d *Dispatcher) of(pool protocol.Pool) *Dispatcher {
	if other := d.others[pool]; other != nil {
		return other
	}
	return d
}

// parts returns the dispatcher itself and the dispatchers of other pools, each once.
func (d *Dispatcher) parts() []*Dispatcher {
	parts := []*Dispatcher{d}
	for _, other := range d.others {
		if !slices.Contains(parts, other) {
			parts = append(parts, other)
		}
	}
	return parts
}

// copyResult copies what is stored of a call's result to where a call that reads it runs, if it is
// elsewhere.
func (d *Dispatcher) copyResult(ctx context.Context, read *protocol.Call) error {
	request, is := read.Payload.(wire.ResultRead)
	if !is {
		return nil
	}
	reader, session, of := d.of(read.Pool), read.SessionID, request.CallID
	names := []string{
		wire.PartObject(session, of, wire.PartText), wire.PartObject(session, of, wire.PartValue),
		wire.PartObject(session, of, wire.PartStdout), wire.PartObject(session, of, wire.PartStderr), wire.PartObject(session, of, wire.PartMedia),
	}
	if there, err := reader.copyKept(ctx, reader, names); there || err != nil {
		return err
	}
	for _, part := range d.parts() {
		if part == reader {
			continue
		}
		if there, err := part.copyKept(ctx, reader, names); there || err != nil {
			return err
		}
		result, err := part.publisher.Result(ctx, session, of)
		if errors.Is(err, wire.ErrInvalidResult) || err == nil && (result == nil || result.Value == nil) {
			continue
		}
		var value []byte
		if err == nil {
			value, err = wire.EncodeValue(result.Value)
		}
		if err == nil {
			_, err = natsio.PutObject(ctx, reader.js, wire.KeptBucket(d.fleet), names[1], bytes.NewReader(value))
		}
		if err != nil {
			return fmt.Errorf("bring the result of call %s to pool %s: %w", of, read.Pool, err)
		}
		return nil
	}
	return nil
}

// copyKept copies the objects that exist, and reports whether there is one.
func (d *Dispatcher) copyKept(ctx context.Context, to *Dispatcher, names []string) (there bool, err error) {
	for _, name := range names {
		object, err := natsio.GetObject(ctx, d.js, wire.KeptBucket(d.fleet), name)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			continue
		}
		if err == nil && d != to {
			_, err = natsio.PutObject(ctx, to.js, wire.KeptBucket(d.fleet), name, object)
		}
		if object != nil {
			err = errors.Join(err, object.Close())
		}
		if err != nil {
			return there, fmt.Errorf("look for %s: %w", name, err)
		}
		there = true
	}
	return there, nil
}

// channels is the store of messages, which is opened when a session first uses it.
type channels struct {
	mu    sync.Mutex
	store *channel.Store
}

func (d *Dispatcher) channelStore(ctx context.Context) (_ *channel.Store, err error) {
	d.channels.mu.Lock()
	defer d.channels.mu.Unlock()
	if d.channels.store == nil {
		d.channels.store, err = channel.Open(ctx, d.js, d.fleet)
	}
	return d.channels.store, err
}

// SendMessage implements [ports.Fleet].
func (d *Dispatcher) SendMessage(ctx context.Context, name string, message ports.ChannelMessage) error {
	store, err := d.channelStore(ctx)
	if err != nil {
		return err
	}
	return store.Send(ctx, name, message)
}

// ReadMessages implements [ports.Fleet].
func (d *Dispatcher) ReadMessages(ctx context.Context, name string, read ports.ChannelRead) ([]ports.ChannelMessage, error) {
	store, err := d.channelStore(ctx)
	if err != nil {
		return nil, err
	}
	return store.Read(ctx, name, read)
}

// SearchFunc is [ports.Fleet.SearchSessions].
type SearchFunc = func(ctx context.Context, query wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error)

// SearchWith sets what searches other sessions. It is called before the first call.
func (d *Dispatcher) SearchWith(search SearchFunc) { d.search = search }

// SearchSessions implements [ports.Fleet].
func (d *Dispatcher) SearchSessions(ctx context.Context, query wire.SessionSearchRequest, owner judge.Owner, except protocol.SessionID) (report.Found, error) {
	if d.search == nil {
		return report.Found{}, errors.New("this process has no index of sessions")
	}
	return d.search(ctx, query, owner, except)
}
