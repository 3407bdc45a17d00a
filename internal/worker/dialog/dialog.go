// Package dialog keeps the functions of stateful tools alive between the calls that
// they answer.
//
//	dialog_open ───► Open ─────► goroutine: run(ctx, talk, arguments)
//	   output ◄───────────────────────── talk.Yield(output) ── waits, with all it knows
//	dialog_continue ► Continue ─► input ─► Yield returns ... ── Yield(output) again, or returns
//	dialog_end ─────► End ──────► ctx ends, Yield returns the error
//
// A dialog lives in the worker that opened it, and as long as one lives the worker keeps
// the lane that it was opened in, although no call comes. So calls that continue it are
// ordinary calls of that lane, and come here in its order. After the loss of the worker, the
// next holder of the lane does not know the dialog, and says so. Other calls that use the
// dialog's resource are ordered with its calls.
//
// A dialog ends when its function returns, on request, after its idle time or its life,
// with the lane, and when a call is stopped and the function does not answer within
// the grace. How it ended is remembered, for the last dialogs of the worker.
package dialog

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/longlived"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrOver is wrapped by what [Talk.Yield] returns when no input comes any more.
var ErrOver = errors.New("the dialog has ended")

// over is the cause with which a dialog's context ends.
type over struct{ ending wire.DialogEnding }

// Error implements the error interface.
func (o over) Error() string { return ErrOver.Error() + ": " + string(o.ending) }

// Is makes every end an [ErrOver].
func (o over) Is(target error) bool { return target == ErrOver }

// Func is the function of a stateful tool. H is what it learns about each call that it
// answers. It runs in a goroutine of its own until it returns; ctx ends when it must.
type Func[H any] func(ctx context.Context, talk *Talk[H], arguments json.RawMessage) (json.RawMessage, error)

// Talk is a dialog as its function sees it. It is for the function's goroutine only.
type Talk[H any] struct {
	dialog *dialog[H]
	step   step[H]
}

// Call is the call that the function answers at present.
func (t *Talk[H]) Call() H { return t.step.call }

// Step is the context of that call: it ends when the call is cancelled or out of time,
// and with the dialog.
func (t *Talk[H]) Step() context.Context { return t.step.ctx }

// Yield answers the call and waits for the next. The error wraps [ErrOver]: the dialog
// has ended, and the function is to return.
func (t *Talk[H]) Yield(output json.RawMessage) (input json.RawMessage, err error) {
	d := t.dialog
	select {
	case d.answers <- output:
	case <-d.life.Context().Done():
		return nil, context.Cause(d.life.Context())
	}
	select {
	case t.step = <-d.steps:
		return t.step.input, nil
	case <-d.life.Context().Done():
		return nil, context.Cause(d.life.Context())
	}
}

// step is one call on its way to the function.
type step[H any] struct {
	ctx   context.Context //nolint:containedctx // it is the call's, and handed on
	call  H
	input json.RawMessage
}

// dialog is a running dialog, or one that has just ended.
type dialog[H any] struct {
	Opening[H]

	idle    time.Duration
	opened  trace.Link          // to the call that opened it
	life    *longlived.Lifetime // over when the function has returned
	turn    chan struct{}       // full while a call is answered, or idleness ends the dialog
	steps   chan step[H]
	answers chan json.RawMessage
	waiting *time.Timer // for the next call

	// Set when the life is over.
	ending wire.DialogEnding
	output json.RawMessage
	err    error
}

// acquireTurn waits for the turn; it reports false when ctx has ended.
func (d *dialog[H]) acquireTurn(ctx context.Context) bool {
	select {
	case d.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// releaseTurn gives the turn back; from then on the dialog waits for its next call.
func (d *dialog[H]) releaseTurn() {
	if d.life.IsRunning() {
		d.waiting.Reset(d.idle)
	}
	<-d.turn
}

// endIdle ends a dialog that waits for too long.
func (d *dialog[H]) endIdle() {
	select {
	case d.turn <- struct{}{}:
		d.life.End(over{wire.DialogIdle})
		<-d.turn
	default: // a call has just come
	}
}

// state is how the dialog stands with its answer.
func (d *dialog[H]) state(output json.RawMessage) wire.DialogState {
	return wire.DialogState{Dialog: d.ID, Output: output, Idle: protocol.MillisOf(d.idle)}
}

// finalState is the state after the function has returned, and why it failed. A function that
// returned because its dialog ended has not failed.
func (d *dialog[H]) finalState() (wire.DialogState, error) {
	<-d.life.Done()
	state, err := wire.DialogState{Dialog: d.ID, Output: d.output, Ending: d.ending}, d.err
	if d.ending == wire.DialogFailed || !errors.Is(err, ErrOver) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return state, err
	}
	if d.ending == wire.DialogEnded {
		return state, nil
	}
	return state, protocol.Errorf(protocol.CodeLimitReached, "the call was not finished: %s", wire.StateLost(d.ending).Message)
}

// awaitAnswer waits for what the function has to say to the call of ctx. When ctx ends, the
// function has the grace to say something; then the dialog ends.
func (d *dialog[H]) awaitAnswer(ctx context.Context, grace func(cause error) time.Duration) (wire.DialogState, error) {
	select {
	case output := <-d.answers:
		return d.state(output), nil
	case <-d.life.Done():
		return d.finalState()
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace(context.Cause(ctx)))
	defer timer.Stop()
	select {
	case output := <-d.answers:
		return d.state(output), nil
	case <-d.life.Done():
		return d.finalState()
	case <-timer.C:
	}
	d.life.Stop(0, over{wire.DialogInterrupted})
	return d.finalState()
}

// Defaults of a [Tool].
const (
	DefaultIdle       = 10 * time.Minute
	DefaultLife       = 2 * time.Hour
	DefaultLive       = 64
	DefaultPerSession = 8
)

// maxEnded is how many ended dialogs a worker remembers.
const maxEnded = 1024

// Tool is a stateful tool; zero values mean the documented default.
type Tool[H any] struct {
	Run Func[H]
	// Idle is how long a dialog waits for its next call; default [DefaultIdle].
	Idle time.Duration
	// Life is how long a dialog lives at most; default [DefaultLife].
	Life time.Duration
	// Live is how many dialogs of the tool live in this worker at most; default [DefaultLive].
	Live int
	// PerSession is how many of them are one session's; default [DefaultPerSession].
	PerSession int
}

// Validate returns every fault of the tool.
func (t Tool[H]) Validate() error {
	var faults []error
	if t.Run == nil {
		faults = append(faults, errors.New("function: missing"))
	}
	if t.Idle < 0 || t.Life < 0 || t.Live < 0 || t.PerSession < 0 {
		faults = append(faults, fmt.Errorf("idle %s, life %s, live %d, per session %d: must not be negative", t.Idle, t.Life, t.Live, t.PerSession))
	}
	return errors.Join(faults...)
}

// Opening is what a dialog is opened with.
type Opening[H any] struct {
	ID        protocol.CallID // of the call
	Session   protocol.SessionID
	Lane      protocol.Lane
	Kind      protocol.Kind
	Call      H
	Arguments json.RawMessage
}

// Set is the dialogs of a worker. It is safe for concurrent use.
type Set[H any] struct {
	// grace is how long a function may take to answer a call whose context ended with cause.
	grace  func(cause error) time.Duration
	logger *slog.Logger

	mu    sync.Mutex
	live  map[protocol.CallID]*dialog[H]
	lanes map[protocol.Lane]int // dialogs that live there
	ended map[protocol.CallID]endedDialog
	order []protocol.CallID // of past
}

// endedDialog is what is remembered of a dialog.
type endedDialog struct {
	session protocol.SessionID
	ending  wire.DialogEnding
}

// New returns an empty set.
func New[H any](grace func(cause error) time.Duration, logger *slog.Logger) *Set[H] {
	return &Set[H]{
		grace: grace, logger: logger,
		live: map[protocol.CallID]*dialog[H]{}, lanes: map[protocol.Lane]int{}, ended: map[protocol.CallID]endedDialog{},
	}
}

// HasRunning reports whether dialogs live in a lane.
func (s *Set[H]) HasRunning(l protocol.Lane) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lanes[l] > 0
}

// Open starts a dialog and returns its first answer. The error is the function's, or
// a *[protocol.Error] when too many live. A dialog whose first call was stopped has ended.
func (s *Set[H]) Open(ctx context.Context, tool Tool[H], o Opening[H]) (wire.DialogState, error) {
	if before := s.find(o.ID); before != nil { // an earlier attempt opened it, whose result was lost
		before.life.Stop(0, over{wire.DialogLost})
	}
	d := &dialog[H]{
		Opening: o, idle: cmp.Or(tool.Idle, DefaultIdle), opened: trace.LinkFromContext(ctx),
		turn: make(chan struct{}, 1), steps: make(chan step[H]), answers: make(chan json.RawMessage),
		life: longlived.NewLifetime(ctx, cmp.Or(tool.Life, DefaultLife), over{wire.DialogExpired}),
	}
	if err := s.add(d, cmp.Or(tool.Live, DefaultLive), cmp.Or(tool.PerSession, DefaultPerSession)); err != nil {
		d.life.End(nil)
		return wire.DialogState{Dialog: o.ID, Ending: wire.DialogFailed}, err
	}
	d.turn <- struct{}{}
	d.waiting = time.AfterFunc(d.idle, d.endIdle)
	stepCtx, release := d.during(ctx)
	defer release()
	talk := &Talk[H]{dialog: d, step: step[H]{ctx: stepCtx, call: o.Call}}
	go d.life.Run(func(ctx context.Context) {
		defer s.remove(d)
		defer d.waiting.Stop()
		d.output, d.err = s.run(ctx, tool.Run, talk, o.Arguments)
		d.ending = endingOf(ctx, d.err)
	})
	state, err := d.awaitAnswer(ctx, s.grace)
	if ctx.Err() != nil && state.Ending == "" {
		d.life.Stop(0, over{wire.DialogInterrupted})
		state.Ending, state.Idle = wire.DialogInterrupted, 0
	}
	d.releaseTurn()
	return state, err
}

// Continue gives a dialog of a session its next input and returns the answer. The error
// is the function's, or a *[protocol.Error] when the dialog is not there any more.
func (s *Set[H]) Continue(
	ctx context.Context, id protocol.CallID, session protocol.SessionID, l protocol.Lane, call H, input json.RawMessage,
) (wire.DialogState, error) {
	d := s.find(id)
	if d == nil || d.Session != session || d.Lane != l {
		return s.endedState(id, session)
	}
	if !d.acquireTurn(ctx) {
		return d.state(nil), ctx.Err()
	}
	defer d.releaseTurn()
	d.waiting.Stop()
	trace.SpanFromContext(ctx).AddLink(d.opened)
	stepCtx, release := d.during(ctx)
	defer release()
	select {
	case d.steps <- step[H]{ctx: stepCtx, call: call, input: input}:
		return d.awaitAnswer(ctx, s.grace)
	case <-d.life.Context().Done(): // before the function got the input
		<-d.life.Done()
		return s.endedState(id, session)
	}
}

// End ends a dialog of a session and returns what its function said last. One that is
// not there any more is fine.
func (s *Set[H]) End(ctx context.Context, id protocol.CallID, session protocol.SessionID, l protocol.Lane) (wire.DialogState, error) {
	d := s.find(id)
	if d == nil || d.Session != session || d.Lane != l {
		state, _ := s.endedState(id, session)
		return state, nil
	}
	d.life.End(over{wire.DialogEnded})
	select {
	case <-d.life.Done():
	case <-ctx.Done():
		return wire.DialogState{Dialog: id, Ending: wire.DialogEnded}, ctx.Err()
	}
	return d.finalState()
}

// Release ends the dialogs of a lane, and returns when their functions have returned.
func (s *Set[H]) Release(l protocol.Lane) {
	s.mu.Lock()
	var all []*dialog[H]
	for _, d := range s.live {
		if d.Lane == l {
			all = append(all, d)
			d.life.End(over{wire.DialogLost})
		}
	}
	s.mu.Unlock()
	for _, d := range all {
		<-d.life.Done()
	}
}

// during is the context of a call that a dialog answers; release must be called.
func (d *dialog[H]) during(ctx context.Context) (stepCtx context.Context, release func()) {
	stepCtx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(d.life.Context(), func() { cancel(context.Cause(d.life.Context())) })
	return stepCtx, func() {
		stop()
		cancel(nil)
	}
}

// run calls the function; its panic is an error.
func (s *Set[H]) run(ctx context.Context, fn Func[H], talk *Talk[H], arguments json.RawMessage) (output json.RawMessage, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.logger.ErrorContext(ctx, "stateful tool panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			output, err = nil, protocol.Errorf(protocol.CodePanic, "the tool panicked: %v", p)
		}
	}()
	return fn(ctx, talk, arguments)
}

// endingOf says how a dialog ended whose function returned err.
func endingOf(ctx context.Context, err error) wire.DialogEnding {
	var cause over
	switch {
	case errors.As(context.Cause(ctx), &cause):
		return cause.ending
	case err != nil:
		return wire.DialogFailed
	default:
		return wire.DialogDone
	}
}

func (s *Set[H]) find(id protocol.CallID) *dialog[H] {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live[id]
}

// add counts a dialog in, if there is room for it.
func (s *Set[H]) add(d *dialog[H], live, perSession int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, own := 0, 0
	for _, other := range s.live {
		if other.Kind == d.Kind {
			all++
			if other.Session == d.Session {
				own++
			}
		}
	}
	switch {
	case own >= perSession:
		return protocol.Errorf(protocol.CodeLimitReached,
			"this session has %d handles of the tool that can be continued, and that is the limit; end one that is not needed any more", own)
	case all >= live:
		return protocol.Errorf(protocol.CodeLimitReached,
			"the worker has %d handles of the tool that can be continued, and that is the limit; end one of yours, or try again later", all)
	}
	s.live[d.ID] = d
	s.lanes[d.Lane]++
	return nil
}

// remove records the end of a dialog.
func (s *Set[H]) remove(d *dialog[H]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, d.ID)
	if s.lanes[d.Lane]--; s.lanes[d.Lane] == 0 {
		delete(s.lanes, d.Lane)
	}
	if _, known := s.ended[d.ID]; !known {
		s.order = append(s.order, d.ID)
	}
	s.ended[d.ID] = endedDialog{session: d.Session, ending: d.ending}
	if len(s.order) > maxEnded {
		delete(s.ended, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
}

// endedState is the answer about a dialog that does not live here.
func (s *Set[H]) endedState(id protocol.CallID, session protocol.SessionID) (wire.DialogState, error) {
	s.mu.Lock()
	known, found := s.ended[id]
	s.mu.Unlock()
	ending := wire.DialogLost
	if found && known.session == session {
		ending = known.ending
	}
	return wire.DialogState{Dialog: id, Ending: ending}, wire.StateLost(ending)
}
