package wire

import (
	"encoding/json"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DialogOpen starts a dialog: a function of a stateful tool, which answers with a value and
// then waits, with all that it knows, for the next input. It lives in the worker that
// executes this call; calls that continue it must be of the same pool and lane.
type DialogOpen struct {
	// Tool is the kind of the worker's handler.
	Tool protocol.Kind `json:"tool"`
	// Arguments is a JSON object.
	Arguments json.RawMessage `json:"arguments"`
}

// DialogContinue gives a dialog its next input. Its delivery is at_most_once: the state
// is in one worker's memory, and gone with it.
type DialogContinue struct {
	// Dialog is the id of the call that opened it, in the same session.
	Dialog protocol.CallID `json:"dialog"`
	// Input is a JSON value; nothing is null.
	Input json.RawMessage `json:"input,omitempty"`
}

// DialogEnd ends a dialog. One that has ended is fine.
type DialogEnd struct {
	Dialog protocol.CallID `json:"dialog"`
}

// DialogEnding says why a dialog cannot be continued.
type DialogEnding string

// Every ending.
const (
	DialogDone        DialogEnding = "done"        // its function returned
	DialogFailed      DialogEnding = "failed"      // its function returned an error, or panicked
	DialogEnded       DialogEnding = "ended"       // by dialog_end
	DialogIdle        DialogEnding = "idle"        // no call came for too long
	DialogExpired     DialogEnding = "expired"     // its life was over
	DialogInterrupted DialogEnding = "interrupted" // a call was stopped, and its function did not answer soon
	DialogLost        DialogEnding = "lost"        // its worker stopped or let go of the lane, or another has the lane now
)

// DialogState is how a dialog stands after a call.
type DialogState struct {
	Dialog protocol.CallID `json:"dialog"`
	// Output is what its function answered: a JSON value.
	Output json.RawMessage `json:"output,omitempty"`
	// Ending is why it cannot be continued; "" while it can.
	Ending DialogEnding `json:"ending,omitempty"`
	// Idle is how long it waits for the next call.
	Idle protocol.Millis `json:"idle_ms,omitempty"`
}

// DialogOpenResult answers [DialogOpen].
type DialogOpenResult struct{ DialogState }

// DialogContinueResult answers [DialogContinue].
type DialogContinueResult struct{ DialogState }

// DialogEndResult answers [DialogEnd].
type DialogEndResult struct{ DialogState }

// StateLost returns the error of a call that continues a dialog after its end. The text is for a
// model, which knows the dialog by a handle.
func StateLost(e DialogEnding) *protocol.Error {
	why, found := map[DialogEnding]string{
		DialogDone:        "its tool was done with it",
		DialogFailed:      "its tool failed",
		DialogEnded:       "it was ended on request",
		DialogIdle:        "it was not continued for too long",
		DialogExpired:     "it had lived as long as it may",
		DialogInterrupted: "a call was stopped and did not answer soon",
	}[e]
	if !found {
		why = "the worker that had its state stopped, was lost, or let go of it"
	}
	return protocol.Errorf(protocol.CodeStateLost, "The handle cannot be continued any more: %s. A new call of its tool begins anew, with a new handle.", why)
}

// DialogStateOf returns the state of the dialog in a value; ok is false if there is none.
func DialogStateOf(v protocol.Value) (state DialogState, ok bool) {
	switch v := v.(type) {
	case DialogOpenResult:
		return v.DialogState, true
	case DialogContinueResult:
		return v.DialogState, true
	case DialogEndResult:
		return v.DialogState, true
	default:
		return DialogState{}, false
	}
}

// DialogRequest is the plan of a tool about a handle. The session finds the call that returned the
// handle, and plans what happens to its dialog.
type DialogRequest struct {
	Handle string
	// End ends the dialog. Otherwise it gets the next input.
	End bool
}
