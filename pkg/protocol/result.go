package protocol

import (
	"fmt"
	"time"
)

// Status is how a call ended. Every status is terminal.
type Status string

// Every status.
const (
	StatusOK             Status = "ok"              // it ran; a command that exits 3 is ok
	StatusFailed         Status = "failed"          // the tool ran and failed
	StatusTimeout        Status = "timeout"         // it ran out of its time
	StatusCancelled      Status = "cancelled"       // someone asked to stop it
	StatusRejected       Status = "rejected"        // not run: policy, bad payload, expired
	StatusOutcomeUnknown Status = "outcome_unknown" // nobody can tell, as of a lost worker; it may have had effects
)

// Code says why a result is not ok, in a closed set of words: models, scripts, logs, spans and
// metrics branch on it.
type Code string

// Codes on which programs branch. Other codes exist, which say what was wrong with a file, an
// argument or a payload: they are for models and people.
const (
	// The request was wrong.
	CodeInvalidArguments Code = "invalid_tool_arguments"
	CodeNotFound         Code = "not_found"
	CodePermission       Code = "permission_denied"
	CodeCommandNotFound  Code = "command_not_found"
	CodePolicyDenied     Code = "policy_denied"

	// A limit ended it.
	CodeRunTimeout   Code = "run_timeout"
	CodeDeadline     Code = "deadline_exceeded"
	CodeQueueTimeout Code = "queue_timeout"
	CodeAfterUnmet   Code = "after_unmet"
	CodeDiskLimit    Code = "disk_limit"
	CodeOOM          Code = "out_of_memory"
	CodeCancelled    Code = "cancelled"

	// The fleet could not, or would not.
	CodeSandboxUnavailable   Code = "sandbox_unavailable"
	CodeSandboxLost          Code = "sandbox_lost"
	CodeStateLost            Code = "state_lost"
	CodeWorkspaceUnavailable Code = "workspace_unavailable"
	CodeAttemptsExhausted    Code = "attempts_exhausted"
	CodeOutcomeUnknown       Code = "outcome_unknown"
	CodeNoWorker             Code = "no_worker"
	CodeFleetFull            Code = "fleet_full"
	CodeBusy                 Code = "busy"           // as many calls wait as a lane or a pool may have
	CodeQuota                Code = "quota_exceeded" // the tenant has used a quota
	CodeFleetUnavailable     Code = "fleet_unavailable"
	CodeToolFailed           Code = "tool_failed"
	CodePanic                Code = "tool_panicked"
	CodeModelFailed          Code = "model_failed"
	CodeAnswerInvalid        Code = "answer_invalid" // of a turn whose answer has a schema
	CodeLimitReached         Code = "limit_reached"
	CodeInternal             Code = "internal"
)

// Error is why a result is not ok. Message is written for the reader who can act
// on it: it says what to do next.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// RetryAfter is how long to wait before another attempt makes sense; 0 is unknown. A tool of
	// one's own may set it, and [Retry] waits that long.
	RetryAfter Millis `json:"retry_after_ms,omitempty"`
}

// Error implements the error interface.
func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is reports whether target is an [Error] with the same code.
func (e *Error) Is(target error) bool {
	other, ok := target.(*Error)
	return ok && e != nil && other != nil && other.Code == e.Code
}

// ErrorType returns the code, a word of low cardinality for telemetry; "" for nil.
func (e *Error) ErrorType() string {
	if e == nil {
		return ""
	}
	return string(e.Code)
}

// Errorf makes an [Error] with a formatted message.
func Errorf(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Result is the typed, terminal answer to a call. There is exactly one for every
// accepted call.
type Result struct {
	CallID    CallID    `json:"call_id"`
	SessionID SessionID `json:"session_id"`
	Status    Status    `json:"status"`
	// Error is set when, and only when, Status is not ok.
	Error *Error `json:"error,omitempty"`
	// WorkerID is who answered; empty when no worker did.
	WorkerID WorkerID `json:"worker_id,omitempty"`
	// Attempt is which start of the call this is the result of, from 1; 0 when it never started.
	Attempt int `json:"attempt,omitempty"`
	// Sequence is the position of the call in the order in which the fleet accepted calls; calls of
	// one lane take effect in that order. 0 when the call was not accepted.
	Sequence uint64 `json:"sequence,omitempty"`
	// Epoch is that of the lane's holder that stored the result; it grows with each holder.
	Epoch uint64 `json:"epoch,omitempty"`
	// Checkpoint is the position of a checkpoint that has what the call changed; 0 when it changed
	// nothing, or the workspace is not stored.
	Checkpoint uint64 `json:"checkpoint,omitempty"`
	// Tries are the attempts that failed before, of the same worker.
	Tries []Try `json:"tries,omitempty"`
	// Level is the sandbox level that was proven where it ran.
	Level string `json:"level,omitempty"`
	// Network is what a program of the call could reach: "proxy" (listed hosts) or "all"; "" is
	// nothing, or that the call ran no program.
	Network string `json:"network,omitempty"`
	// QueueMS is from acceptance to the last start, LaneMS the part of it after
	// the lane was claimed, RunMS from there to the end; in milliseconds.
	QueueMS float64 `json:"queue_ms"`
	LaneMS  float64 `json:"lane_ms"`
	RunMS   float64 `json:"run_ms"`
	// SandboxMS and StoreMS are the parts of RunMS in which the sandbox was opened, and in which
	// the whole output and the changes were stored; parts below a millisecond are left out.
	SandboxMS  float64   `json:"sandbox_ms,omitempty"`
	StoreMS    float64   `json:"store_ms,omitempty"`
	Waits      Waits     `json:"waits,omitzero"`
	FinishedAt time.Time `json:"finished_at"`
	// Tool and Digest are those of the call.
	Tool   string `json:"tool,omitempty"`
	Digest string `json:"digest,omitempty"`
	// Kept is set when more of Value is kept than a reader may be shown, or Value has.
	Kept *Kept `json:"kept,omitempty"`

	// Value is the output of the payload; it may be set in addition to Error (partial output).
	Value Value `json:"-"`
}

// Waits is what a call waited for until its last start, in milliseconds; times below one are left
// out.
type Waits struct {
	NotBeforeMS float64 `json:"not_before_ms,omitempty"` // its time; not of QueueMS
	SlotMS      float64 `json:"slot_ms,omitempty"`       // a worker with a free slot, in its tenant's turn
	LaneMS      float64 `json:"lane_ms,omitempty"`       // earlier calls of its lane that it conflicts with
	AfterMS     float64 `json:"after_ms,omitempty"`      // calls of its After, once nothing else held it up
	LimitMS     float64 `json:"limit_ms,omitempty"`      // a limit of calls at once
	RateMS      float64 `json:"rate_ms,omitempty"`       // a limit of starts in a time
	PauseMS     float64 `json:"pause_ms,omitempty"`      // an operator, who paused the lane
	LostMS      float64 `json:"lost_ms,omitempty"`       // a worker that was lost, until another one took over

	// HeldBy is the last of the calls of LaneMS, and HeldBySession its session if that is another
	// one. Both are empty if the call is of another tenant, or an earlier holder ran it.
	HeldBy        CallID    `json:"held_by,omitempty"`
	HeldBySession SessionID `json:"held_by_session,omitempty"`
	// AfterCall is the last of the calls of AfterMS, and AfterSession its session if that is
	// another one.
	AfterCall    CallID    `json:"after_call,omitempty"`
	AfterSession SessionID `json:"after_session,omitempty"`
	// Limit is the lanes of the rule that LimitMS and RateMS are about, such as api/*.
	Limit string `json:"limit,omitempty"`
	// LostWorker is the worker of LostMS.
	LostWorker WorkerID `json:"lost_worker,omitempty"`
}

// Kept means that the fleet stores the whole result until its session is removed, because it may be
// too long to be shown at once.
type Kept struct {
	// Lines is how many lines of a list, or of a file, are kept; 0 when it is neither.
	Lines int `json:"lines,omitempty"`
	// Truncated says that there was more than a worker keeps.
	Truncated bool `json:"truncated,omitempty"`
}
