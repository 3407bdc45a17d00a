package report

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// CallQuery says which calls of the log are wanted. Fields that are zero leave out nothing.
type CallQuery struct {
	Session protocol.SessionID
	Call    protocol.CallID
	Tool    string
	// Status has those that are wanted: statuses, [CallsExit] and [CallsNotOK].
	Status []protocol.Status
	// Lane is POOL/LANE, or a lane in any pool.
	Lane   string
	Tenant protocol.Tenant
	Worker protocol.WorkerID
	// Since and Until bound when the calls ended: not before Since, and before Until.
	Since, Until time.Time
	// Text are words as in a search of sessions, of the input or of the output.
	Text string
	// After is the Next of the page before.
	After string
	// Position is that of an earlier page. The page has calls that the log took in since then, the
	// first one first, and no Next: its own Position is where the next page begins. It is without
	// After.
	Position string
	// Limit bounds the number of calls of a page, up to 1,000; 0 means 50.
	Limit int
	// Whole returns inputs and outputs as long as the log has them: 16 KiB, and not 400 bytes.
	Whole bool
	// Journaled leaves out inputs and outputs that no session's journal has, for readers who get
	// results as hooks have changed them: journals have them so.
	Journaled bool
}

// CallLog is a page of the log of calls that ended, the last one first.
type CallLog struct {
	// Calls are those of the page. Their inputs and outputs are cut to 400 bytes.
	Calls []LoggedCall `json:"calls"`
	// Next names the next page; "" if this is the last one. With a query for words a page may have
	// fewer calls than were asked for, also none, and a next page nevertheless.
	Next string `json:"next,omitempty"`
	// Position is how far the log was read: a query from there gets the calls that the log took in
	// since then, in the order in which it took them in, whatever the clocks of their workers say.
	Position string `json:"position"`
	// Behind means that the log is being brought up to date: more calls will come.
	Behind bool `json:"behind,omitempty"`
	// Since is the time before which calls have left the log, by its bounds of age and size; nil if
	// none has.
	Since *time.Time `json:"since,omitempty"`
}

// Values that a query for calls may have in addition to the statuses.
const (
	CallsExit  protocol.Status = "exit"   // commands that ran, and did not succeed: see [LoggedCall].Exit
	CallsNotOK protocol.Status = "not_ok" // those of CallsExit, and those with another status than ok
)

// LoggedCall is a call that ended.
type LoggedCall struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	// Turn, Step and Index are those of the tool call of a model: Turn and Step from 1, Index from
	// 0. They are 0 of a call that no model made.
	Turn  int `json:"turn,omitempty"`
	Step  int `json:"step,omitempty"`
	Index int `json:"index,omitempty"`
	// Tool is the name of the tool, or else the kind of the payload.
	Tool string `json:"tool"`
	// Attempt is which start of the call has its result, from 1; 0 when it never started.
	Attempt int `json:"attempt,omitempty"`
	// Input is up to 16 KiB of the arguments, or of the payload of a call without a model. Values
	// of more than 1 KiB are digest and size. Output is up to 16 KiB of what the model read, or of
	// the result as text. Models, tools and files have made both.
	Input  string `json:"input,omitempty"`
	Output string `json:"output,omitempty"`
	// Lane is POOL/LANE; "" if the call ran in the coordinator.
	Lane      string         `json:"lane,omitempty"`
	Resources []protocol.Use `json:"resources,omitempty"`
	// Tenant is the tenant of the session, or else of the call; "" if it is not known. Owner is the
	// principal for whom it was made; "" is the operator.
	Tenant protocol.Tenant `json:"tenant,omitempty"`
	Owner  string          `json:"owner,omitempty"`

	AcceptedAt time.Time `json:"accepted_at"`
	StartedAt  time.Time `json:"started_at,omitzero"` // the last start; zero if it never started
	FinishedAt time.Time `json:"finished_at"`

	Status protocol.Status `json:"status"`
	// Exit says how a command ended that ran and did not succeed, as in "exit code 2" or "ended by
	// signal KILL". The status of its call is ok.
	Exit  string          `json:"exit,omitempty"`
	Error *protocol.Error `json:"error,omitempty"` // with up to 500 bytes of its message

	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	// Level is the sandbox level that was proven where the call ran.
	Level string `json:"level,omitempty"`
	// Checkpoint is the position of a checkpoint with what the call changed; 0 is none.
	Checkpoint uint64  `json:"checkpoint,omitempty"`
	RunMS      float64 `json:"run_ms"`
	// SandboxMS and StoreMS are the parts of RunMS in which the sandbox was opened, and in which
	// the whole output and the changes were stored.
	SandboxMS float64   `json:"sandbox_ms,omitempty"`
	StoreMS   float64   `json:"store_ms,omitempty"`
	Waits     CallWaits `json:"waits"`
}

// CallWaits is what calls waited for, in milliseconds.
type CallWaits struct {
	// QueueMS is from acceptance to the last start, without NotBeforeMS. It has the other waits of
	// [protocol.Waits], and what none of them explains.
	QueueMS float64 `json:"queue_ms"`
	protocol.Waits
	// ModelMS is how long the model took for the reply that made the call. PersonMS is how long the
	// call waited for approvals of the calls of its reply, and for answers while it ran.
	ModelMS  float64 `json:"model_ms,omitempty"`
	PersonMS float64 `json:"person_ms,omitempty"`
}

// TotalMS is how long a call waited: in the fleet, for its time, and for persons.
func (w *CallWaits) TotalMS() float64 { return w.QueueMS + w.NotBeforeMS + w.PersonMS }

// CallRates are how many calls ended in a time, and how long they took.
type CallRates struct {
	StepMS int64 `json:"step_ms"`
	// Buckets have the whole time in steps, the first one first, also those without calls.
	Buckets []CallRate `json:"buckets"`
	// Behind and Since are as in [CallLog].
	Behind bool       `json:"behind,omitempty"`
	Since  *time.Time `json:"since,omitempty"`
}

// CallRate is one step of [CallRates].
type CallRate struct {
	At     time.Time `json:"at"`     // when it begins
	Calls  int       `json:"calls"`  // that ended in it
	Failed int       `json:"failed"` // those of [CallsNotOK]
	// Half of the calls, and 95 of 100, took at most that long: to run, and to wait in the fleet
	// (QueueMS). Of whole minutes it is known to a tenth.
	RunP50MS  float64 `json:"run_p50_ms"`
	RunP95MS  float64 `json:"run_p95_ms"`
	WaitP50MS float64 `json:"wait_p50_ms"`
	WaitP95MS float64 `json:"wait_p95_ms"`
	// Waits are the sums of the calls, without the names of what they waited for.
	Waits CallWaits `json:"waits"`
}
