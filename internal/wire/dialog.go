package wire

import "github.com/toolfleet/toolfleet/pkg/protocol"

// StateLost returns the error of a call that continues a dialog after its end. The text is for a
// model, which knows the dialog by a handle.
func StateLost(e protocol.DialogEnding) *protocol.Error {
	why, found := map[protocol.DialogEnding]string{
		protocol.DialogDone:        "its tool was done with it",
		protocol.DialogFailed:      "its tool failed",
		protocol.DialogEnded:       "it was ended on request",
		protocol.DialogIdle:        "it was not continued for too long",
		protocol.DialogExpired:     "it had lived as long as it may",
		protocol.DialogInterrupted: "a call was stopped and did not answer soon",
	}[e]
	if !found {
		why = "the worker that had its state stopped, was lost, or let go of it"
	}
	return protocol.Errorf(protocol.CodeStateLost, "The handle cannot be continued any more: %s. A new call of its tool begins anew, with a new handle.", why)
}

// DialogStateOf returns the state of the dialog in a value; ok is false if there is none.
func DialogStateOf(v protocol.Value) (state protocol.DialogState, ok bool) {
	switch v := v.(type) {
	case protocol.DialogOpenResult:
		return v.DialogState, true
	case protocol.DialogContinueResult:
		return v.DialogState, true
	case protocol.DialogEndResult:
		return v.DialogState, true
	default:
		return protocol.DialogState{}, false
	}
}
