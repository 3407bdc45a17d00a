package wire

import (
	"encoding/json"
	"time"

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

// ProcessList lists the background processes of a sandbox: the running ones, and the
// last ones that ended.
type ProcessList struct{}

// ProcessRead reads the output of a background process, both streams in the order written.
type ProcessRead struct {
	// Process is the handle that starting it returned.
	Process string `json:"process"`
	// Offset is the first byte, from 0; a negative one counts from the end.
	Offset int64 `json:"offset,omitempty"`
	// Limit is how many bytes at most; 0 means as many as fit.
	Limit int64 `json:"limit,omitempty"`
	// Wait is how long to wait for output at Offset, or for the end of the process.
	Wait protocol.Millis `json:"wait_ms,omitempty"`
}

// ProcessSend types something at the terminal of a background process, and reads what it then
// writes.
type ProcessSend struct {
	Process string `json:"process"`
	// Input is what is typed, at most [MaxInput]: Enter is a carriage return, control-C is 3.
	Input protocol.Bytes `json:"input"`
	// Wait is how long to wait for output at most; it ends when there was some, and no more comes.
	Wait protocol.Millis `json:"wait_ms,omitempty"`
}

// MaxInput bounds what is typed at once, in bytes.
const MaxInput = 64 << 10

// ProcessKill kills a background process with all that it started, and returns
// when it is gone. One that has ended is fine.
type ProcessKill struct {
	Process string `json:"process"`
}

// ProcessStatus is how a background process is.
type ProcessStatus struct {
	// Process is its handle.
	Process string `json:"process"`
	// Command is its beginning: the shell text, or the argument vector.
	Command   string    `json:"command"`
	StartedAt time.Time `json:"started_at"`
	// Reason is running, or as in [protocol.Execution].
	Reason string `json:"reason"`
	// ExitCode is the exit status; -1 when a signal ended it, or it lives.
	ExitCode int    `json:"exit_code"`
	Signal   string `json:"signal,omitempty"`
	// Bytes is how much it wrote so far.
	Bytes int64 `json:"bytes"`
	// TTY says that it has a terminal.
	TTY bool `json:"tty,omitempty"`
	// Kept is, of an ended process, the call under whose id its whole output is stored, for
	// [ResultRead]; "" if it can be read at once, or could not be stored.
	Kept protocol.CallID `json:"kept,omitempty"`
}

// ProcessListResult answers [ProcessList]; processes are sorted by start.
type ProcessListResult struct {
	Processes []ProcessStatus `json:"processes"`
}

// ProcessReadResult answers [ProcessRead].
type ProcessReadResult struct {
	ProcessStatus

	Content protocol.Bytes `json:"content"`
	// Offset is where Content begins: later than what was asked for when that is not
	// kept any more. NextOffset is where to read on.
	Offset     int64 `json:"offset"`
	NextOffset int64 `json:"next_offset"`
	// Dropped is how many bytes from the beginning cannot be read here any more.
	Dropped int64 `json:"dropped,omitempty"`
}

// ProcessSendResult answers [ProcessSend]: Content is what was written since.
type ProcessSendResult struct{ ProcessReadResult }

// ProcessKillResult answers [ProcessKill].
type ProcessKillResult struct{ ProcessStatus }

// MCPList asks a server which tools it has, and starts it if need be.
type MCPList struct {
	Server protocol.MCPServer `json:"server"`
}

// MCPListResult answers [MCPList].
type MCPListResult struct {
	Tools []MCPTool `json:"tools"`
}

// MCPTool is a tool as a server describes it.
type MCPTool struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"input_schema"`
	// Title is a name for people; it may be empty.
	Title string `json:"title,omitempty"`
	// Output is the JSON Schema of [protocol.MCPCallResult].Structured; nil if the server has none.
	Output json.RawMessage `json:"output_schema,omitempty"`
	// ReadOnly and Idempotent are hints of the server.
	ReadOnly   bool `json:"read_only,omitempty"`
	Idempotent bool `json:"idempotent,omitempty"`
	// Additive says that what a call changes it only adds to, and Closed that it reaches nothing
	// beyond the server: hints of the server.
	Additive bool `json:"additive,omitempty"`
	Closed   bool `json:"closed,omitempty"`
	// Rule is what the server says of how the tool is used: an mcp.Rule.
	Rule json.RawMessage `json:"rule,omitempty"`
}
