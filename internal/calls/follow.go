package calls

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/telemetry"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

const (
	// maxParallelLookups bounds the results that are looked up at the same time.
	maxParallelLookups = 4
	// maxLookupPause is the longest time between two lookups of a result for which no caller waits.
	maxLookupPause = 30 * time.Second
	// lookupsPerInterval is how many results for which callers wait are looked up on average in the
	// time of [Options].LookAfter.
	lookupsPerInterval = 256
	// answeredWithin is how long after the result of a call the end of its question may arrive:
	// each has a subscription of its own.
	answeredWithin = 50 * time.Millisecond
)

// lookups is when the result of a call is looked up.
type lookups struct {
	loading bool          // the result is known, and its value is being loaded
	wait    time.Duration // before the next lookup
	lookAt  time.Time
	giveUp  time.Time // when the outcome is unknown, after a cancel; zero is never
}

// progress is how far a call is, for its observer.
type progress struct {
	running   bool
	taken     bool               // a worker has it, which says what it waits for
	waits     string             // what for, as last reported
	asked     time.Time          // when workers were last asked what it waits for
	attempt   attempt            // the one that runs
	heard     time.Time          // when its worker last reported something
	times     loop.CallTimes     // with all starts
	question  *protocol.Question // that is not answered
	questions *nats.Subscription
}

// follow returns when the result and the frames of a call arrive, and what it asks its observer.
func (t *table) follow(ctx context.Context, h *Handle) error {
	t.mu.Lock()
	watch, done := h.watch, h.state == handleDone
	t.mu.Unlock()
	if watch == nil {
		var err error
		if watch, err = t.d.results.open(h.Call.SessionID, h.Call.ID, h.onResult, h.onFrame); err != nil { //nolint:contextcheck // what it subscribes outlives the caller
			return err
		}
		t.mu.Lock()
		if h.watch, done = watch, h.state == handleDone; done {
			watch.Stop()
		}
		t.mu.Unlock()
	}
	if done {
		return nil
	}
	if err := watch.confirm(ctx); err != nil {
		return err
	}
	return t.subscribeQuestions(h)
}

// subscribeQuestions listens to what a call of an MCP server asks; others ask nothing.
func (t *table) subscribeQuestions(h *Handle) error {
	t.mu.Lock()
	observed := h.observed()
	t.mu.Unlock()
	if !observed || wire.KindOf(h.Call.Payload) != wire.KindMCPCall {
		return nil
	}
	subscription, err := t.d.nc.Subscribe(wire.QuestionSubject(t.d.fleet, h.Call.Pool, h.Call.SessionID, h.Call.ID), func(message *nats.Msg) {
		u := loop.Update{State: loop.StateRunning}
		if question, err := wire.Decode[protocol.Question](message.Data); err == nil {
			u.Question = question
		} else if answered, err := wire.Decode[protocol.Answer](message.Data); err == nil {
			u.Answered = answered
		} else {
			return // the worker declines it
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if h.state != handleDone {
			h.question = u.Question
			t.report(h, u)
		}
	})
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.state == handleDone || h.questions != nil {
		_ = subscription.Unsubscribe() // fails only when the connection is closed
		return nil
	}
	h.questions = subscription
	return nil
}

func (h *Handle) onResult(r *protocol.Result) {
	t := h.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.question != nil {
		h.question = nil
		time.AfterFunc(answeredWithin, func() { h.onResult(r) })
		return
	}
	t.end(h, r, nil)
}

func (h *Handle) onFrame(frame *wire.Frame) {
	t := h.table
	t.mu.Lock()
	if h.state != handleDone {
		t.progressed(h, frame)
	}
	frames := h.frames
	t.mu.Unlock()
	if frames != nil {
		frames(frame)
	}
}

// progressed notes what a frame says of a call; the lock is held.
func (t *table) progressed(h *Handle, frame *wire.Frame) {
	h.heard = time.Now()
	switch frame.Kind {
	case wire.FrameWaiting:
		h.taken = true
		t.waitsFor(h, string(frame.Data))
	case wire.FrameStarted:
		h.running, h.attempt = true, attempt{worker: frame.WorkerID, number: frame.Attempt}
		if len(h.times.Starts) < maxStarts {
			h.times.Starts = append(h.times.Starts, loop.CallStart{Attempt: frame.Attempt, WorkerID: frame.WorkerID, AfterMS: h.millis()})
		}
		h.span.AddEvent(telemetry.EventStarted, trace.WithAttributes(
			telemetry.KeyWorkerID.String(string(frame.WorkerID)), telemetry.KeyAttempt.Int(frame.Attempt)))
		t.report(h, loop.Update{State: loop.StateRunning, WorkerID: frame.WorkerID, Attempt: frame.Attempt})
	default: // output
	}
}

// maxStarts bounds the starts that are noted; a call has [protocol.Call].MaxAttempts of them,
// unless another program sends frames.
const maxStarts = 16

// millis is the time since the handle was made, in milliseconds.
func (h *Handle) millis() float64 { return float64(time.Since(h.since)) / float64(time.Millisecond) }

// seen is the times of a call for its observer. Of a call that started once its result says enough.
func (h *Handle) seen() loop.CallTimes {
	times := h.times
	if len(times.Starts) < 2 {
		times.Starts = nil
	}
	return times
}

// waitsFor reports what a call waits for, if that has changed; the lock is held.
func (t *table) waitsFor(h *Handle, why string) {
	if h.state != handleDone && !h.running && h.waits != why {
		h.waits = why
		t.report(h, loop.Update{State: loop.StateQueued, Waits: why})
	}
}

// schedule has the result of a call looked up; the lock is held.
func (t *table) schedule(h *Handle) {
	if h.state == handleDone {
		return
	}
	h.wait = t.nextLookup(h)
	h.lookAt = time.Now().Add(h.wait)
	t.startPolling()
}

// nextLookup is the time until the result of a call is looked up again; the lock is held.
func (t *table) nextLookup(h *Handle) time.Duration {
	first := t.d.options.LookAfter
	if h.group.waited {
		return first * time.Duration(1+len(t.open)/lookupsPerInterval)
	}
	return min(max(2*h.wait, first), maxLookupPause)
}

// startPolling starts the goroutine that looks up results; the lock is held.
func (t *table) startPolling() {
	if !t.polling && !t.closed && len(t.open) > 0 {
		t.polling = true
		t.group.Go(t.pollResults)
	}
}

// pollResults looks up the results of open handles now and then: each after a second, and then less
// and less often unless a caller waits, because a result is seldom missed. After a reconnect all
// are looked up.
func (t *table) pollResults() {
	period := time.NewTicker(t.d.options.LookAfter / 4)
	defer period.Stop()
	reconnects := t.d.nc.Stats().Reconnects
	for {
		select {
		case <-period.C:
		case <-t.sending.Done():
			return
		}
		again := reconnects != t.d.nc.Stats().Reconnects
		reconnects = t.d.nc.Stats().Reconnects
		now := time.Now()
		var due, observed []*Handle
		t.mu.Lock()
		if len(t.open) == 0 {
			t.polling = false
			t.mu.Unlock()
			return
		}
		for h := range t.open {
			if h.observed() {
				observed = append(observed, h)
			}
			if h.state != handleSent || h.loading || now.Before(h.lookAt) && !again {
				continue
			}
			h.wait = t.nextLookup(h)
			if h.lookAt = now.Add(h.wait); !h.giveUp.IsZero() {
				h.lookAt = now
			}
			due = append(due, h)
		}
		t.askForWorkers(now, observed)
		t.checkHeartbeats(now, observed)
		t.mu.Unlock()
		t.lookUp(due)
	}
}

func (t *table) lookUp(due []*Handle) {
	if len(due) == 0 {
		return
	}
	if err := t.d.publisher.Streams(t.ctx); err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, h := range due {
			t.end(h, nil, fmt.Errorf("%w: %w", ErrUnreachable, err))
		}
		return
	}
	group, ctx := errgroup.WithContext(t.ctx)
	group.SetLimit(maxParallelLookups)
	for _, h := range due {
		group.Go(func() error { return t.lookUpOne(ctx, h) })
	}
	_ = group.Wait() // without a connection the others fail too, and are looked up again
}

func (t *table) lookUpOne(ctx context.Context, h *Handle) error {
	t.mu.Lock()
	call, skip := h.Call, h.state != handleSent || h.loading
	t.mu.Unlock()
	if skip || ctx.Err() != nil {
		return nil
	}
	r, err := t.d.recorded(ctx, call, h.since)
	switch {
	case err != nil || r == nil:
		return err
	case isLarge(r): // the lookups of others do not wait for it
		t.mu.Lock()
		h.loading = true
		t.mu.Unlock()
		t.group.Go(func() { t.load(h, r) })
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(h, r, nil)
	return nil
}

// load ends a handle whose result has a large value, once that is loaded. After an error it is
// looked up again.
func (t *table) load(h *Handle, r *protocol.Result) {
	err := t.d.results.load(t.ctx, r)
	if errors.Is(err, wire.ErrInvalidResult) {
		r, err = unreadable(h.Call, err), nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch h.loading = false; {
	case err == nil:
		t.end(h, r, nil)
	case !h.giveUp.IsZero() && time.Now().After(h.giveUp):
		t.giveUp([]*Handle{h})
	}
}

// recorded is the stored result of a call that was sent then; nil when there is none yet. One that
// cannot be read, or was deleted with its stream, is there for good. It loads no value that is a
// [wire.Stored].
func (d *Dispatcher) recorded(ctx context.Context, call *protocol.Call, since time.Time) (*protocol.Result, error) {
	r, err := d.publisher.Recorded(ctx, call.SessionID, call.ID)
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
