package worker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Stateful is a tool whose function answers several calls; see package dialog. Errors are
// as those of a [Handler].
type Stateful = dialog.Tool[*Handling]

// Talk is a dialog as the function of a stateful tool sees it.
type Talk = dialog.Talk[*Handling]

// answerGrace is how long the function of a stateful tool may take to answer a call that
// was stopped, before its dialog ends.
const answerGrace = time.Second

// graceAfter is none for a lane that must be quiet at once.
func graceAfter(cause error) time.Duration {
	if errors.Is(cause, lane.ErrLost) || errors.Is(cause, lane.ErrDraining) {
		return 0
	}
	return answerGrace
}

// talk carries out a call about a dialog; ok is false when it is another.
func (w *Worker) talk(ctx context.Context, run *lane.Run, frames *frames) (r protocol.Result, ok bool) {
	var value protocol.Value
	var state protocol.DialogState
	var err error
	c, handling := run.Call, &Handling{Run: run, worker: w, frames: frames}
	switch p := c.Payload.(type) {
	case protocol.DialogOpen:
		state, err = w.dialogs.Open(ctx, w.options.Handlers.Stateful[p.Tool], dialog.Opening[*Handling]{
			ID: c.ID, Session: c.SessionID, Lane: c.Lane(), Kind: p.Tool, Call: handling, Arguments: p.Arguments,
		})
		err = w.checked(&state, err)
		value = protocol.DialogOpenResult{DialogState: state}
	case protocol.DialogContinue:
		input := p.Input
		if input == nil {
			input = json.RawMessage("null")
		}
		state, err = w.dialogs.Continue(ctx, p.Dialog, c.SessionID, c.Lane(), handling, input)
		err = w.checked(&state, err)
		value = protocol.DialogContinueResult{DialogState: state}
	case protocol.DialogEnd:
		state, err = w.dialogs.End(ctx, p.Dialog, c.SessionID, c.Lane())
		err = w.checked(&state, err)
		value = protocol.DialogEndResult{DialogState: state}
	default:
		return r, false
	}
	return w.returned(ctx, c, value, err), true
}

// checked is the error of a state, as that of a tool; an output that is no JSON is one.
func (w *Worker) checked(state *protocol.DialogState, err error) error {
	if len(state.Output) > 0 && !json.Valid(state.Output) {
		state.Output = nil
		err = errors.Join(err, errors.New("the tool answered with something that is no JSON"))
	}
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return toolFault(err)
}
