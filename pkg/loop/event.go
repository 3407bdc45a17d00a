package loop

import (
	"encoding/json"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// EventType names an event.
type EventType string

// The events of a session. Observers get all of them; the live ones are not journaled.
const (
	EventSessionStarted EventType = "session_started"
	EventTurnStarted    EventType = "turn_started"
	EventInputAdded     EventType = "input_added" // a person says more while the turn runs; Step is the one behind which the model reads it
	EventModelReply     EventType = "model_reply"
	EventNativeCall     EventType = "native_call" // the provider ran it for the reply that follows
	EventToolCall       EventType = "tool_call"
	EventToolResult     EventType = "tool_result"
	EventApprovalAsked  EventType = "approval_asked" // a person is asked about the call, once more after a lost coordinator
	EventPolicyDecision EventType = "policy_decision"
	EventHookDecided    EventType = "hook_decided"   // what hooks decided about the turn, its end, a request to the model, or a call before it is judged
	EventCallJudged     EventType = "call_judged"    // what was decided about a call by another interface than a turn, before it is sent
	EventQuestionAsked  EventType = "question_asked" // the running call asks a person; live once more when the turn is resumed
	EventAnswered       EventType = "question_answered"
	EventJobEnded       EventType = "job_ended"
	EventPartLeftOut    EventType = "part_left_out"          // the model's server refused it; later requests omit it
	EventCompacted      EventType = "conversation_compacted" // Text is the summary that stands for earlier replies
	EventRewound        EventType = "conversation_rewound"   // the turns after KeptTurn are no part of the conversation any more
	EventBudgetLow      EventType = "budget_low"             // 80% is used; Text is what the model reads, once for a budget
	EventBudgetSpent    EventType = "budget_spent"           // the model is asked for an answer without tools; Text is what it reads
	EventAnswerRefused  EventType = "answer_refused"         // the answer is not valid under [Input].AnswerSchema; Text is what the model reads
	EventTurnEnded      EventType = "turn_ended"
	EventReplyFailed    EventType = "reply_failed"   // an attempt gave no reply and is billed; Text says why
	EventTurnPostponed  EventType = "turn_postponed" // a trigger's turn comes later, or is left out; Text says why
	EventSessionMerged  EventType = "session_merged" // Text is what the model reads of a fork that was merged
	EventChangeStarted  EventType = "change_started" // a person merges a fork, or restores the workspace, by the call CallID
	EventChangeEnded    EventType = "change_ended"
	EventRevertStarted  EventType = "revert_started" // a person undoes the effect of the call Reverts by the call CallID
	EventRevertEnded    EventType = "revert_ended"   // Text is what the model reads of it
	EventCallResolved   EventType = "call_resolved"  // a person found out what became of a call of unknown outcome
	EventCopyStarted    EventType = "copy_started"   // a fork of From, or an import, begins; until its CallID comes again there is no session
	EventSessionForked  EventType = "session_forked" // the events before are those of another session
	EventImported       EventType = "session_imported"
	EventRemoved        EventType = "session_removed" // the session is being removed: it takes no turn, and nothing follows; see [RemovalCompleted]
	EventSessionEnded   EventType = "session_ended"   // live: the run of this process is over

	EventTextDelta      EventType = "text_delta"      // live: a piece of the model's text
	EventReasoningDelta EventType = "reasoning_delta" // live: a piece of what it thinks before
	EventModelWaits     EventType = "model_waits"     // live: no reply yet; Text says why, and what comes next
	EventAgentMoved     EventType = "agent_moved"     // live: what the sub-agent of the call says or does
	EventToolQueued     EventType = "tool_queued"     // live: the call was accepted
	EventToolRunning    EventType = "tool_running"    // live: a worker started it, or a lost worker came back
	EventWorkerLost     EventType = "worker_lost"     // live: the call's worker is lost; Text says what comes next
)

// RemovalCompleted is the status of a [EventRemoved] that is the record of a session which was
// removed. It is alone in its journal, for some days, and fences requests that were made before it.
const RemovalCompleted = "completed"

// Event is one journal entry of a session, or one live event. Its Type decides which groups of
// fields are set; the comment of a group names the types that have it. The JSON form has all
// fields in one object and is a contract.
type Event struct {
	Type      EventType          `json:"type"`
	SessionID protocol.SessionID `json:"session_id"`
	Time      time.Time          `json:"time"`
	Turn      int                `json:"turn,omitempty"` // from 1
	Step      int                `json:"step,omitempty"` // from 1

	StartFields

	// Text depends on the type of event. The model's words: model_reply, text_delta,
	// reasoning_delta, turn_ended, session_ended. Text for the model: budget_low, budget_spent,
	// answer_refused, session_merged, revert_ended, call_resolved, conversation_compacted. A
	// reason: policy_decision, call_judged, approval_asked, part_left_out. The request to the
	// provider's tool: native_call. The next step: worker_lost. A sub-agent's progress:
	// agent_moved. The requirement that no worker meets, "" if one does: tool_queued. turn_ended
	// has no text where the journal could not store it a second time.
	Text string `json:"text,omitempty"`
	// Answer is the Text of an answer with a schema, as JSON (turn_ended, session_ended).
	Answer json.RawMessage `json:"answer,omitempty"`

	ReplyFields
	CallFields
	HandleFields
	NoteFields

	// Part is what was left out of the tool call ToolCallID, which for an attachment is its
	// [Attachment].ID (part_left_out).
	Part PartKind `json:"part,omitempty"`
	// Status is that of the call (tool_result, job_ended, revert_ended; tool_call when the call is
	// refused), a decision (policy_decision, call_judged: "denied" by a rule; "approved", "refused"
	// or "expired" by a person; "allowed" of a call_judged that is counted), "happened" or
	// "did_not" (call_resolved), a [protocol.Action] (question_answered; [protocol.ActionCancel]
	// means no answer), or an [Outcome] (turn_ended, session_ended).
	Status string `json:"status,omitempty"`

	ResultFields
}

// StartFields describe a session (session_started) and a turn (turn_started). The CallID of
// turn_started is [Input].ID, its By the name of [Options].Author.
type StartFields struct {
	// Model is also that of a model_reply which a [Fallback] made, and of a reply_failed.
	Model     string   `json:"model,omitempty"`
	Tools     []string `json:"tools,omitempty"`
	Workspace string   `json:"workspace,omitempty"`
	// Instructions are the names of the files of [Options].Project.
	Instructions []string `json:"instructions,omitempty"`
	// Parent is the tool call that started a sub-agent; nil for other sessions.
	Parent *Parent `json:"parent,omitempty"`
	// Tenant owns the session: that of its first turn (session_started); "" is the default tenant.
	Tenant protocol.Tenant `json:"tenant,omitempty"`
	// Trigger is the trigger or schedule that began the turn (also turn_postponed); "" if a person
	// did.
	Trigger string `json:"trigger,omitempty"`

	// Input is what the person says (also input_added).
	Input       string       `json:"input,omitempty"`
	Attachments []Attachment `json:"attachments,omitempty"`
	// AnswerSchema is [Input].AnswerSchema.
	AnswerSchema json.RawMessage `json:"answer_schema,omitempty"`
	// Seed is a secret from which the ids of the session's calls derive, in the first turn that has
	// one. Observers do not get it.
	Seed  string `json:"seed,omitempty"`
	Terms *Terms `json:"terms,omitempty"`
	// TraceID is the turn's trace in hex (also turn_ended and session_ended), and SpanID its span;
	// "" when traces are not exported. A resumed turn continues its trace.
	TraceID string `json:"trace_id,omitempty"`
	SpanID  string `json:"span_id,omitempty"`
}

// ReplyFields are a reply without its text (model_reply), and what replies took.
type ReplyFields struct {
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	Reasoning *Reasoning `json:"reasoning,omitempty"`
	// Finish is [FinishLength] for a reply that was cut.
	Finish string `json:"finish,omitempty"`
	// Usage is that of the reply (model_reply, conversation_compacted, reply_failed), or the sum
	// (turn_ended, session_ended).
	Usage *protocol.Usage `json:"usage,omitempty"`
	// CostUSD is what Usage cost, by [Options].Price; nil while the price of a reply is unknown.
	CostUSD *float64 `json:"cost_usd,omitempty"`
	// ElapsedMS is the time since the reply before in the same run.
	ElapsedMS protocol.Millis `json:"elapsed_ms,omitempty"`
	// RequestMS is the time from the request to the reply (model_reply), WaitMS the part of it in
	// pauses before a request, and WaitFor why the last one was made.
	RequestMS float64 `json:"request_ms,omitempty"`
	WaitMS    float64 `json:"wait_ms,omitempty"`
	WaitFor   string  `json:"wait_for,omitempty"`
	// Spent is the usage of a sub-agent (tool_result), in addition to Usage and CostUSD.
	Spent *protocol.Spending `json:"spent,omitempty"`
}

// CallFields identify a tool call (every event about a call; part_left_out has only ToolCallID and
// Name). A native_call has only Name, and those of the tool call that stores its image.
type CallFields struct {
	CallID     protocol.CallID `json:"call_id,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
	Index      int             `json:"index,omitempty"`
	Name       string          `json:"name,omitempty"`
	// Arguments are set for tool_call and approval_asked, unless the journal could not store them a
	// second time.
	Arguments string `json:"arguments,omitempty"`
}

// HandleFields are those of calls in the background, of calls of stateful tools, and of calls that
// ask a person.
type HandleFields struct {
	// Job is the handle of a call in the background (tool_result when the call continues there,
	// job_ended).
	Job string `json:"job,omitempty"`
	// Told reports that the model received the result from a tool call (job_ended).
	Told bool `json:"told,omitempty"`
	// About is the stateful tool that the call continues (tool_call).
	About string `json:"about,omitempty"`
	// Lane is the call's destination, POOL/LANE (tool_call, question_asked); "" for a call that
	// runs in the coordinator.
	Lane string `json:"lane,omitempty"`
	// Question is what the running call wants to know (question_asked; question_answered has only
	// its ID).
	Question *protocol.Question `json:"question,omitempty"`
	// Handle names what the call of a stateful tool opened or continued (tool_result), and Ending
	// why it cannot be continued; "" while it can.
	Handle string `json:"handle,omitempty"`
	Ending string `json:"ending,omitempty"`
	// Bound is what binds the call on its worker (tool_call); [Options].Observe does not get it.
	Bound *Binding `json:"bound,omitempty"`
}

// NoteFields are those of summaries, forks, merges, reverts and decisions.
type NoteFields struct {
	// KeptTurn and KeptStep name the first reply that a summary does not stand for
	// (conversation_compacted). KeptTurn is also the last turn that a conversation keeps, 0 for
	// none (conversation_rewound).
	KeptTurn int `json:"kept_turn,omitempty"`
	KeptStep int `json:"kept_step,omitempty"`
	// From is the session that was forked (session_forked) or merged, and Checkpoint that of the
	// merged one (session_merged), or that with what the call changed (tool_result, job_ended).
	From       protocol.SessionID `json:"from,omitempty"`
	Checkpoint uint64             `json:"checkpoint,omitempty"`
	// Call is the call of a change as it is sent (change_started, revert_started). The next process
	// that extends the session sends it again, unless the change has ended.
	Call json.RawMessage `json:"call,omitempty"`
	// Reverts is the call whose effect is undone (revert_started, revert_ended).
	Reverts protocol.CallID `json:"reverts,omitempty"`
	// Rule is the rule that decided, By who answered, Via the way by which the answer came, and
	// Note what they noted (policy_decision, call_judged, approval_asked). By is also the principal
	// that owns the session (session_started), and who began the turn (turn_started), added to it
	// (input_added), answered a question (question_answered) or resolved a call (call_resolved).
	Rule string `json:"rule,omitempty"`
	// Source is where the rule is written, as in "policy.yaml:7" (approval_asked). Scope is what an
	// approval for the session covers (approval_asked), or covers from now on (policy_decision).
	// Giver is whose approval for the session it is (policy_decision); nil without a token.
	Source string          `json:"source,omitempty"`
	Scope  string          `json:"scope,omitempty"`
	Giver  *protocol.Giver `json:"giver,omitempty"`
	By     string          `json:"by,omitempty"`
	Via    string          `json:"via,omitempty"`
	Note   string          `json:"note,omitempty"`
	// Interface is the way by which a call came that no model made: [SingleOptions].Interface
	// (call_judged, turn_started).
	Interface string `json:"interface,omitempty"`
	// Hook is what hooks decided (hook_decided; model_reply, tool_result, job_ended and call_judged
	// with hooks).
	Hook *HookNote `json:"hook,omitempty"`
}

// ResultFields are the result of a call (tool_result, job_ended, native_call). Error is also that
// of turn_ended and session_ended, WorkerID and Attempt also those of tool_running and worker_lost.
type ResultFields struct {
	// Content is what the model sees.
	Content string `json:"content,omitempty"`
	// Image is what a model that takes images or documents sees next to Content. Its Data is
	// missing from live events, and from events older than the fleet's retention of results if the
	// journal had no room.
	Image *Image          `json:"image,omitempty"`
	Error *protocol.Error `json:"error,omitempty"`
	// Exit says how a command ended that ran and did not succeed, as in "exit code 2" or "ended by
	// signal KILL". The status of its call is ok.
	Exit     string            `json:"exit,omitempty"`
	WorkerID protocol.WorkerID `json:"worker_id,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	// Tries are the attempts that failed before, and that the tool's retry repeated.
	Tries   []protocol.Try `json:"tries,omitempty"`
	QueueMS *float64       `json:"queue_ms,omitempty"`
	RunMS   *float64       `json:"run_ms,omitempty"`
	// SandboxMS, StoreMS, Waits and Level are those of the [protocol.Result].
	SandboxMS float64        `json:"sandbox_ms,omitempty"`
	StoreMS   float64        `json:"store_ms,omitempty"`
	Waits     protocol.Waits `json:"waits,omitzero"`
	Level     string         `json:"level,omitempty"`
	CallTimes
	// Diff is a short unified diff of what the call changed.
	Diff string `json:"diff,omitempty"`
	// Scratch is what the call changed in the scratchpad (tool_result).
	Scratch *ScratchChange `json:"scratch,omitempty"`
	// Read is how far the call has read a channel (tool_result), or the turn begins with its
	// messages (turn_started).
	Read *ChannelPosition `json:"read,omitempty"`
	// Effect is that of a call which reaches outside of the workspace; nil of others.
	Effect *Effect `json:"effect,omitempty"`
}

// CallTimes are times of a call as the process saw them that sent it, in milliseconds since then.
type CallTimes struct {
	// SendMS is when the fleet had accepted the call, and Full why it did not accept it at once.
	SendMS float64 `json:"send_ms,omitempty"`
	Full   string  `json:"full,omitempty"`
	// Starts are those of a call that was started more than once, as after a lost worker.
	Starts []CallStart `json:"starts,omitempty"`
}

// CallStart is a start of a call.
type CallStart struct {
	Attempt  int               `json:"attempt"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	AfterMS  float64           `json:"after_ms"`
}

// FinishLength is the [Event].Finish of a reply that ended at a limit of output tokens.
const FinishLength = "length"

// Outcome is how a turn ended.
type Outcome string

// Every outcome.
const (
	OutcomeAnswered     Outcome = "answered"
	OutcomeFailed       Outcome = "failed"
	OutcomeLimitReached Outcome = "limit_reached"
	OutcomeInterrupted  Outcome = "interrupted"
)
