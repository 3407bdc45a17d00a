package dialog

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/resident"
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

// dialog is one that lives, or has just ended.
type dialog[H any] struct {
	Opening[H]

	idle    time.Duration
	opened  trace.Link     // to the call that opened it
	life    *resident.Life // over when the function has returned
	turn    chan struct{}  // full while a call is answered, or idleness ends the dialog
	steps   chan step[H]
	answers chan json.RawMessage
	waiting *time.Timer // for the next call

	// Set when the life is over.
	ending wire.DialogEnding
	output json.RawMessage
	err    error
}

// take waits for the turn; it reports false when ctx has ended.
func (d *dialog[H]) take(ctx context.Context) bool {
	select {
	case d.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// give gives the turn back; from then on the dialog waits for its next call.
func (d *dialog[H]) give() {
	if d.life.Lives() {
		d.waiting.Reset(d.idle)
	}
	<-d.turn
}

// tired ends a dialog that waits for too long.
func (d *dialog[H]) tired() {
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

// last is the state after the function has returned, and why it failed. A function that returned
// because its dialog ended has not failed.
func (d *dialog[H]) last() (wire.DialogState, error) {
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

// answer waits for what the function has to say to the call of ctx. When ctx ends, the
// function has the grace to say something; then the dialog ends.
func (d *dialog[H]) answer(ctx context.Context, grace func(cause error) time.Duration) (wire.DialogState, error) {
	select {
	case output := <-d.answers:
		return d.state(output), nil
	case <-d.life.Done():
		return d.last()
	case <-ctx.Done():
	}
	timer := time.NewTimer(grace(context.Cause(ctx)))
	defer timer.Stop()
	select {
	case output := <-d.answers:
		return d.state(output), nil
	case <-d.life.Done():
		return d.last()
	case <-timer.C:
	}
	d.life.Stop(0, over{wire.DialogInterrupted})
	return d.last()
}
