package wire

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// ProcessList lists the background processes of a sandbox: those that live, and the
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
