package worker

import (
	"context"
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ErrOver is wrapped by the error of [Dialog.Yield] when the dialog has ended.
var ErrOver = dialog.ErrOver

// StatefulOptions bound the dialogs of a stateful tool; nil and zero mean the documented default.
type StatefulOptions struct {
	// Idle is how long a dialog waits for its next call; 0 means 10 minutes.
	Idle time.Duration
	// Life is the longest time of a dialog; 0 means 2 hours.
	Life time.Duration
	// Live is the maximum number of dialogs of the tool in a worker; 0 means 64. More are refused
	// with limit_reached.
	Live int
	// PerSession is how many of them one session may have; 0 means 8.
	PerSession int
}

// Dialog is one run of the function of a stateful tool, from the call that opened it to its
// end. It is for that function's goroutine only.
type Dialog[Input, Output any] struct {
	kind protocol.Kind
	talk *kinds.Talk
}

// Call is the call that the function answers now: the opening call, or that of the last Yield. It
// is valid until the next Yield.
func (d *Dialog[Input, Output]) Call() *Call { return &Call{handling: d.talk.Call()} }

// Step is the context of that call. It ends when the call is cancelled or out of time, and with the
// dialog. A function that yields within a second after that keeps its dialog, and the result has
// its output next to the status. Otherwise the dialog is lost.
func (d *Dialog[Input, Output]) Step() context.Context {
	return d.talk.Call().Run.Leased(d.talk.Step())
}

// Yield answers the present call with a value and waits for the next, whose input it returns.
//
// The error wraps [ErrOver] when there is no next one: clean up and return. It is a
// *[protocol.Error] when the input is not of this type, as the tool was made with another.
func (d *Dialog[Input, Output]) Yield(output Output) (input Input, err error) {
	encoded, err := answered(output, nil)
	if err != nil {
		return input, err
	}
	raw, err := d.talk.Yield(encoded)
	if err != nil {
		return input, err
	}
	return decode[Input](d.kind, raw)
}

// HandleStateful makes the handler of a stateful tool, which is made with
// [github.com/toolfleet/toolfleet/pkg/tools.NewStateful] where the sessions run. A call of the tool
// runs fn in a goroutine of its own; each Yield answers one call and waits for the next, with
// everything that fn has in its variables. What fn returns is its last answer; an error is as with
// [Handle], and a panic is the result tool_panicked. Either ends the dialog.
//
//	func(ctx context.Context, d *worker.Dialog[Input, Output], args Args) (Output, error) {
//		state := open(args)
//		defer state.close()
//		output := state.greeting()
//		for !state.done() {
//			input, err := d.Yield(output)
//			if err != nil {
//				return output, err
//			}
//			output = state.next(d.Step(), input)
//		}
//		return output, nil
//	}
//
// The calls of a dialog come one after another, in the order of its lane, which the worker holds
// until the dialog ends. ctx ends when fn must return: when the model ended the dialog, it was idle
// for too long or is too old, or the worker stops or lost the lane. The worker waits for it, as
// nothing else can stop it. The state is in this process only: after a lost worker a call that
// continues it is outcome_unknown if it may have started, else rejected with state_lost.
func HandleStateful[Args, Input, Output any](
	kind protocol.Kind, fn func(ctx context.Context, dialog *Dialog[Input, Output], args Args) (Output, error), options *StatefulOptions,
) Handler {
	var o StatefulOptions
	if options != nil {
		o = *options
	}
	run := func(ctx context.Context, talk *kinds.Talk, raw json.RawMessage) (json.RawMessage, error) {
		args, err := decode[Args](kind, raw)
		if err != nil {
			return nil, err
		}
		return answered(fn(talk.Call().Run.Leased(ctx), &Dialog[Input, Output]{kind: kind, talk: talk}, args))
	}
	if fn == nil {
		run = nil
	}
	return Handler{kind: kind, stateful: &kinds.Stateful{
		Run: run, Idle: o.Idle, Life: o.Life, Live: o.Live, PerSession: o.PerSession,
	}}
}
