package report

import (
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Reason says what a time was spent on, and what is waited for. This is the one list of them:
// lanes, traces, the log of calls, metrics, plots and pages have these.
type Reason string

// Every reason.
const (
	ReasonRun        Reason = "run"
	ReasonModel      Reason = "model"
	ReasonSandbox    Reason = "sandbox"
	ReasonStore      Reason = "store"  // outputs, changes, journals; policies and hooks judged
	ReasonSend       Reason = "send"   // to the fleet
	ReasonResult     Reason = "result" // on its way
	ReasonRetry      Reason = "retry"  // attempts that failed and were repeated
	ReasonPerson     Reason = "person"
	ReasonLane       Reason = "lane"
	ReasonSlot       Reason = "slot"
	ReasonLimit      Reason = "limit"
	ReasonRate       Reason = "rate"
	ReasonModelLimit Reason = "model_limit" // pauses of requests to the model
	ReasonFull       Reason = "full"        // a lane or a pool had as many waiting calls as it may have
	ReasonAfter      Reason = "after"
	ReasonNotBefore  Reason = "not_before"
	ReasonPause      Reason = "pause"
	ReasonLost       Reason = "lost"   // a worker, with the attempt that it ran
	ReasonWorker     Reason = "worker" // one that can run the call: none that answers can
	ReasonAgent      Reason = "agent"  // a sub-agent, whose spans say more
)

// ReasonClass groups reasons.
type ReasonClass string

// Every class.
const (
	ClassModel    ReasonClass = "model"
	ClassRun      ReasonClass = "run"
	ClassWait     ReasonClass = "wait"
	ClassOverhead ReasonClass = "overhead"
)

// described is what is known of a reason.
type described struct {
	reason Reason
	class  ReasonClass
	what   string
}

// reasons are the classes and words of all reasons. A moment counts for the first of them.
var reasons = []described{ //nolint:gochecknoglobals // a constant
	{ReasonRun, ClassRun, "ran"},
	{ReasonModel, ClassModel, "model"},
	{ReasonSandbox, ClassOverhead, "sandbox start"},
	{ReasonRetry, ClassRun, "failed attempts"},
	{ReasonStore, ClassOverhead, "stored, judged"},
	{ReasonSend, ClassOverhead, "sent"},
	{ReasonResult, ClassOverhead, "result on its way"},
	{ReasonPerson, ClassWait, "a person"},
	{ReasonRate, ClassWait, "a rate"},
	{ReasonLimit, ClassWait, "a limit"},
	{ReasonModelLimit, ClassWait, "the model's limit"},
	{ReasonFull, ClassWait, "room in a queue"},
	{ReasonPause, ClassWait, "a paused lane"},
	{ReasonNotBefore, ClassWait, "its time"},
	{ReasonLost, ClassWait, "a lost worker"},
	{ReasonWorker, ClassWait, "a worker"},
	{ReasonSlot, ClassWait, "a slot"},
	{ReasonAfter, ClassWait, "other calls"},
	{ReasonLane, ClassWait, "the lane"},
	{ReasonAgent, ClassRun, "sub-agent"},
}

// Reasons returns every reason, the one first that gets a turn furthest.
func Reasons() []Reason {
	all := make([]Reason, len(reasons))
	for i := range reasons {
		all[i] = reasons[i].reason
	}
	return all
}

// row is what is known of the reason; one that is not known is itself, and [ClassOverhead].
func (r Reason) row() described {
	if i := slices.IndexFunc(reasons, func(d described) bool { return d.reason == r }); i >= 0 {
		return reasons[i]
	}
	return described{r, ClassOverhead, string(r)}
}

// Class groups the reason; one that is not known is [ClassOverhead].
func (r Reason) Class() ReasonClass { return r.row().class }

// What says the reason in a few words, such as "the lane" of a wait.
func (r Reason) What() string { return r.row().what }

// Words says what the time was spent on, such as "waited for the lane".
func (r Reason) Words() string {
	if r.Class() == ClassWait {
		return "waited for " + r.What()
	}
	return r.What()
}

// Wait is what a lane or a call waits for now, with what the reason is about, as far as it is about
// one thing and that is known. The zero value is nothing.
type Wait struct {
	Reason Reason `json:"reason"`
	// Limit is the lanes of the rule of a limit or a rate, such as api/*.
	Limit string `json:"limit,omitempty"`
	// WorkerID is the worker whose slots are taken, or that was lost, and Pool its pool, or the one
	// that has no worker which can run the call.
	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Pool     protocol.Pool     `json:"pool,omitempty"`
	// SessionID and CallID are the call that has to end first.
	SessionID protocol.SessionID `json:"session_id,omitempty"`
	CallID    protocol.CallID    `json:"call_id,omitempty"`
}
