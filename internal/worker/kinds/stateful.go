package kinds

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/worker/dialog"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Stateful is a tool whose function answers several calls; see package dialog. Errors are
// as those of a [Handler].
type Stateful = dialog.Tool[*Attempt]

// Talk is a dialog as the function of a stateful tool sees it.
type Talk = dialog.Talk[*Attempt]

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

// checkDialog refuses a stateful tool that this worker does not have.
func checkDialog(h *Host, p wire.DialogOpen) *protocol.Error {
	if h.Handlers.Stateful[p.Tool].Run == nil {
		return protocol.Errorf(protocol.CodeUnknownPayload, "this worker does not know the stateful tool %q: it may be older than the coordinator, or lack the handler", p.Tool)
	}
	return nil
}

func dialogOpen(ctx context.Context, a *Attempt, p wire.DialogOpen) (protocol.Value, error) {
	c := a.Run.Call
	state, err := a.host.dialogs.Open(ctx, a.host.Handlers.Stateful[p.Tool], dialog.Opening[*Attempt]{
		ID: c.ID, Session: c.SessionID, Lane: c.Lane(), Kind: p.Tool, Call: a, Arguments: p.Arguments,
	})
	err = checked(&state, err)
	return wire.DialogOpenResult{DialogState: state}, err
}

func dialogContinue(ctx context.Context, a *Attempt, p wire.DialogContinue) (protocol.Value, error) {
	input := p.Input
	if input == nil {
		input = json.RawMessage("null")
	}
	state, err := a.host.dialogs.Continue(ctx, p.Dialog, a.Run.Call.SessionID, a.lane(), a, input)
	err = checked(&state, err)
	return wire.DialogContinueResult{DialogState: state}, err
}

func dialogEnd(ctx context.Context, a *Attempt, p wire.DialogEnd) (protocol.Value, error) {
	state, err := a.host.dialogs.End(ctx, p.Dialog, a.Run.Call.SessionID, a.lane())
	err = checked(&state, err)
	return wire.DialogEndResult{DialogState: state}, err
}

// dialogSize is the size of what a stateful tool answered.
func dialogSize(v protocol.Value) int {
	state, _ := wire.DialogStateOf(v)
	return len(state.Output)
}

// checked is the error of a state, as that of a tool; an output that is no JSON is one.
func checked(state *wire.DialogState, err error) error {
	if len(state.Output) > 0 && !json.Valid(state.Output) {
		state.Output = nil
		err = errors.Join(err, errors.New("the tool answered with something that is no JSON"))
	}
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return toolFault(err)
}
