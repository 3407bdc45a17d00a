// Package report has the values in which a fleet describes its lanes, calls, workers and sessions.
// A client returns them, and coordinator prints them as JSON.
//
// A report is not one moment: the fleet goes on while it is read.
package report

import (
	"cmp"
	"strings"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Worker is a worker's report: its proven capabilities, and its limits. Which worker gets a call
// does not depend on it.
type Worker struct {
	WorkerID protocol.WorkerID `json:"worker_id"`
	Pool     protocol.Pool     `json:"pool"`
	// Build is the version of its program, as --version prints it; "" when it does not say.
	Build string `json:"build,omitempty"`
	// Slots is the number of calls that run at once, HeldLanes the number of lanes that it holds
	// right now.
	Slots     int `json:"slots"`
	HeldLanes int `json:"held_lanes"`
	// Running is the number of slots that are in use right now.
	Running int `json:"running,omitempty"`
	// Ended is the number of calls that it has ended since it started, by its clock, and Failed the
	// number of those whose status is neither ok nor cancelled. Both begin at 0 when it starts
	// again.
	Ended     uint64    `json:"ended,omitempty"`
	Failed    uint64    `json:"failed,omitempty"`
	StartedAt time.Time `json:"started_at,omitzero"`
	// Driver is the sandbox driver, and Launcher how it gets its namespaces, if it has any.
	Driver   string `json:"driver"`
	Launcher string `json:"launcher,omitempty"`
	// Level is what the driver has proven: none, paths, full or kernel.
	Level string `json:"level"`
	// Network is what sandboxes reach: none, proxy (listed hosts) or all.
	Network string `json:"network"`
	// ReadOnly means that read-only commands are enforced, and so accepted.
	ReadOnly bool `json:"read_only"`
	// LimitKinds says by what each limit is enforced, as in [protocol.Execution].
	LimitKinds map[string]string `json:"limit_kinds,omitempty"`
	// Limits are the worker's own, which calls can only tighten; 0 is none, or the driver's
	// default.
	Limits protocol.Limits `json:"limits,omitzero"`
	// Languages are those of code_run, sorted; Kinds the payloads of users' handlers, sorted.
	Languages []string        `json:"languages"`
	Kinds     []protocol.Kind `json:"kinds,omitempty"`
	// Models are those that a coordinator serves, sorted; coordinators are the workers of the pool
	// [protocol.SessionPool].
	Models []string `json:"models,omitempty"`
	// SignKey names the key with which a coordinator signs calls; "" means that it signs none.
	SignKey string `json:"sign_key,omitempty"`
	// Draining means that it is being stopped: it accepts nothing new.
	Draining bool `json:"draining,omitempty"`
}

// Lane is a lane that has calls, is held, or is paused. A lane that changes hands may look lost or
// stalled.
type Lane struct {
	// Lane is empty if no stored message names it. Hash is the lane in subjects.
	Lane protocol.Lane `json:"lane"`
	Hash string        `json:"hash"`
	Pool protocol.Pool `json:"pool"`
	// State is "ready" (waits for a worker with a free slot), "held" (a worker holds it), "lost"
	// (its holder does not answer; another worker takes over within a lease), "stalled" (has calls
	// and no ready message; a worker repairs that within a second or two), "paused" (starts nothing
	// until it is resumed) or "delayed" (has only calls that wait for their time).
	State string `json:"state"`
	// Waiting is the number of unfinished calls that do not run.
	Waiting int `json:"waiting"`
	// Delayed is the number of calls that wait for their time; Waiting does not count them.
	Delayed int `json:"delayed,omitempty"`
	// OldestMS is how long ago the oldest unfinished call was accepted, in milliseconds; 0 without
	// one.
	OldestMS int64 `json:"oldest_ms"`
	// Holder is the worker that reports that it holds the lane, for HeldMS milliseconds; of a lost
	// lane the one that its claim names; empty without a holder.
	Holder protocol.WorkerID `json:"holder,omitempty"`
	HeldMS int64             `json:"held_ms,omitempty"`
	// SilentMS is for how long the holder of a lost lane has sent no heartbeat, in milliseconds; 0
	// if that is not known.
	SilentMS int64 `json:"silent_ms,omitempty"`
	// WaitsFor says in words what the lane's next call waits for: a slot, a limit, an earlier call,
	// its time or an operator; "" is none. Wait is the same for programs.
	WaitsFor string        `json:"waits_for,omitempty"`
	Wait     Wait          `json:"wait,omitzero"`
	Running  []RunningCall `json:"running"` // the longest first
}

// LaneList is the lanes of a pool, the one with the oldest call first.
type LaneList struct {
	Lanes   []Lane `json:"lanes"`
	LeftOut int    `json:"left_out"` // lanes beyond the limit
	// Incomplete means that there may be lanes that are not even counted.
	Incomplete bool `json:"incomplete"`
}

// RunningCall is a call that a worker executes.
type RunningCall struct {
	CallID    protocol.CallID    `json:"call_id"`
	SessionID protocol.SessionID `json:"session_id"`
	Tool      string             `json:"tool"`
	Attempt   int                `json:"attempt"` // from 1
	// RunningMS is how long this attempt has been running, in milliseconds, and Waits what it
	// waited for before.
	RunningMS int64          `json:"running_ms"`
	Waits     protocol.Waits `json:"waits,omitzero"`
}

// LaneCalls is a lane with its unfinished calls.
type LaneCalls struct {
	Lane
	Calls   []Call `json:"calls"`    // in their order, delayed ones last
	LeftOut int    `json:"left_out"` // calls beyond the limit, finished ones among them
}

// Call is an unfinished call of a lane.
type Call struct {
	CallID    protocol.CallID    `json:"call_id"`
	SessionID protocol.SessionID `json:"session_id"`
	Tool      string             `json:"tool"`
	Tenant    protocol.Tenant    `json:"tenant,omitempty"` // "" is default
	Owner     string             `json:"owner,omitempty"`  // the principal it was made for; "" is the operator
	Resources []protocol.Use     `json:"resources"`
	Delivery  protocol.Delivery  `json:"delivery"`
	// State is "waiting", "delayed" (waits for its time), "running" or "cancelling".
	State      string    `json:"state"`
	AcceptedAt time.Time `json:"accepted_at"` // by the server's clock
	AgeMS      int64     `json:"age_ms"`      // since then, in milliseconds
	// Attempt is the attempt that runs, for RunningMS milliseconds; 0 when none does.
	Attempt   int   `json:"attempt"`
	RunningMS int64 `json:"running_ms,omitempty"`
	// NotBefore is when a delayed call enters its lane, by the server's clock; zero for others.
	NotBefore time.Time `json:"not_before,omitzero"`
	// Starts are the start marks that are stored. A first start has one only when the call must not
	// start twice.
	Starts []Start `json:"starts"`
	// Needs is what a call that does not run needs of the worker that takes it.
	Needs *Need `json:"needs,omitempty"`
	// WaitsFor says in words which requirement no worker of the pool meets, as far as workers
	// answer. Wait is the same for programs.
	WaitsFor string `json:"waits_for,omitempty"`
	Wait     Wait   `json:"wait,omitzero"`
	// Payload is the call's; nil when it cannot be read.
	Payload protocol.Payload `json:"-"`
	// Fault says why the call cannot be read; then it will be rejected.
	Fault string `json:"fault,omitempty"`
}

// Start is the stored mark of a start of a call.
type Start struct {
	Attempt  int               `json:"attempt"`
	WorkerID protocol.WorkerID `json:"worker_id"`
	At       time.Time         `json:"at"`
}

// Need is what a call requires of its worker.
type Need struct {
	// Kind is that of the payload, or of the handler that runs it, if Handler says so.
	Kind    protocol.Kind `json:"kind"`
	Handler bool          `json:"handler,omitempty"`
	// Level is the minimum level of the sandbox; "" is any.
	Level string `json:"level,omitempty"`
	// Model is the one that a turn names; "" is any.
	Model string `json:"model,omitempty"`
	// Disk, if set, is the disk that has the workspace, which only one worker has.
	Disk string `json:"disk,omitempty"`
}

// Session is what is known of a session. Of one that another process of this machine runs without a
// fleet, there are only its id, when it changed and its size on disk.
type Session struct {
	SessionID protocol.SessionID `json:"session_id"`
	// State is the outcome of the last turn ("answered", "failed", "limit_reached" or
	// "interrupted"), or one of the constants.
	State string `json:"state"`
	// Parent is the session whose sub-agent or fork this one is; "" without one.
	Parent    protocol.SessionID `json:"parent,omitempty"`
	Prompt    string             `json:"prompt,omitempty"` // of the first turn
	By        string             `json:"by,omitempty"`     // who asked for it, as git names them
	Tenant    protocol.Tenant    `json:"tenant,omitempty"` // that owns it, if it is known
	Owner     string             `json:"owner,omitempty"`  // the principal that owns it; "" is the operator
	Model     string             `json:"model,omitempty"`
	Workspace string             `json:"workspace,omitempty"` // directory that it was started on

	CreatedAt *time.Time `json:"created_at,omitempty"`
	UpdatedAt time.Time  `json:"updated_at"`
	// Steps are replies of the model, and ToolCalls the calls in those replies.
	Turns     int            `json:"turns"`
	Steps     int            `json:"steps"`
	ToolCalls int            `json:"tool_calls"`
	Usage     protocol.Usage `json:"usage"`
	// CostUSD is nil when the price of a reply is unknown.
	CostUSD *float64 `json:"cost_usd,omitempty"`

	// Messages and JournalBytes are the size of the journal, Results the number of stored results,
	// Bodies and BodyBytes the number and the size of objects in the object stores.
	Messages     uint64 `json:"messages"`
	JournalBytes int64  `json:"journal_bytes"`
	Results      uint64 `json:"results"`
	Bodies       int    `json:"bodies"`
	BodyBytes    uint64 `json:"body_bytes"`
	// DiskBytes is the size of the directory of a session that ran on this machine without a fleet.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
	// StoredTurns are the turns at whose ends the files of a session that works in place are
	// stored; 0 is the beginning of the session.
	StoredTurns []int `json:"stored_turns,omitempty"`

	// Waits has a sentence about each call that no worker may take.
	Waits []string `json:"waits,omitempty"`
	// Approval is the call that waits for a person, and Questions are what running calls ask, the
	// oldest first.
	Approval  *Question  `json:"approval,omitempty"`
	Questions []Question `json:"questions,omitempty"`
	// Unknown are calls of unknown outcome, until a person resolves them.
	Unknown []Unknown `json:"unknown,omitempty"`

	// History has the turns; lists leave it out.
	History []Turn `json:"history,omitempty"`
}

// The states of a [Session] in addition to outcomes of turns.
const (
	StateOpen                = "open"                  // a turn runs, or its coordinator was lost
	StateInUse               = "in_use"                // something of it runs or waits
	StateLost                = "lost"                  // the process of this machine that ran its turn was lost
	StateWaitsForApproval    = "waits_for_approval"    // see Approval
	StateWaitsForAnswer      = "waits_for_answer"      // see Questions
	StateWaitsForWorker      = "waits_for_worker"      // no worker has taken its calls
	StateWaitsForCoordinator = "waits_for_coordinator" // no coordinator has taken its turn
	StateForked              = "forked"                // it had no turn of its own yet
	StateInvalid             = "invalid"               // its journal cannot be read
	StateUncompleted         = "uncompleted"           // the fork or import that makes it was interrupted
	StateRemoving            = "removing"              // its removal runs, or was interrupted
	StateWorkspaceOnly       = "workspace_only"        // it had no turn: only calls used its workspace
)

// Turn is one turn of a session, with State as in [Session].
type Turn struct {
	Turn      int       `json:"turn"`
	State     string    `json:"state"`
	StartedAt time.Time `json:"started_at"`
	Steps     int       `json:"steps"`
	ToolCalls int       `json:"tool_calls"`
	Input     string    `json:"input"`
	TraceID   string    `json:"trace_id,omitempty"` // where its trace was exported
}

// Question is a call that waits for a person to approve it, or a running call that asks a person.
type Question struct {
	SessionID protocol.SessionID `json:"session_id"`
	CallID    protocol.CallID    `json:"call_id"`
	Tool      string             `json:"tool"`
	Arguments string             `json:"arguments"`
	Reason    string             `json:"reason"` // or what the call asks
	// Rule asks for the approval, and Source is where it is written, as in "policy.yaml:7". Scope
	// is what an approval for the session covers; "" if it cannot be given.
	Rule    string    `json:"rule,omitempty"`
	Source  string    `json:"source,omitempty"`
	Scope   string    `json:"scope,omitempty"`
	AskedAt time.Time `json:"asked_at"`
	// Question is what a running call asks, nil for an approval, and Lane where the call runs,
	// POOL/LANE.
	Question *protocol.Question `json:"question,omitempty"`
	Lane     string             `json:"lane,omitempty"`
}

// Pool is where the call of a question runs.
func (q *Question) Pool() protocol.Pool {
	pool, _, _ := strings.Cut(q.Lane, "/")
	return cmp.Or(protocol.Pool(pool), protocol.DefaultPool)
}

// Unknown is a call that may have had its effects or not.
type Unknown struct {
	CallID    protocol.CallID `json:"call_id"`
	Tool      string          `json:"tool"`
	Arguments string          `json:"arguments,omitempty"`
}

// Effect is a call that reaches outside of the workspace: restoring the workspace does not undo it.
type Effect struct {
	CallID protocol.CallID `json:"call_id"`
	Tool   string          `json:"tool"`
	Status protocol.Status `json:"status"`
	// Reaches says how; none for a call of unknown outcome whose tool is not known.
	Reaches []string `json:"reaches,omitempty"`
	// Revert is the tool that undoes it; "" when none does.
	Revert string `json:"revert,omitempty"`
	// Reverted says that it was undone.
	Reverted bool `json:"reverted,omitempty"`
}

// Removed is what there was of a removed session.
type Removed struct {
	Events    uint64 `json:"events"`  // messages of the journal
	Results   uint64 `json:"results"` // of calls
	Bodies    int    `json:"bodies"`  // whole outputs, large values, archives
	Workspace bool   `json:"workspace"`
	// Schedules are those of users that started turns or calls in the session. A forced removal
	// removes them.
	Schedules []string `json:"schedules,omitempty"`
}

// Merged is what the merge of a fork did.
type Merged struct {
	MergedFiles
	// Answer is the last that the model of the fork said.
	Answer string `json:"answer,omitempty"`
	// Text says all that in sentences, as the session's model reads it.
	Text string `json:"-"`
}

// MergedFiles is what the merge of a fork did in the workspace. Every list is of paths, sorted.
type MergedFiles struct {
	Written []string `json:"written,omitempty"`
	Removed []string `json:"removed,omitempty"`
	// Merged are those of Written that have the changes of both sides.
	Merged []string `json:"merged,omitempty"`
	// Conflicts changed on both sides and stayed as they were; Theirs are the files that have the
	// fork's version of them.
	Conflicts []string `json:"conflicts,omitempty"`
	Theirs    []string `json:"theirs,omitempty"`
	// Protected are paths that nothing changes.
	Protected []string `json:"protected,omitempty"`
	// Commits reports that the fork has commits, or other references of git, that stay there.
	Commits bool `json:"commits,omitempty"`
	// Checkpoint is the fork's that was merged.
	Checkpoint uint64 `json:"checkpoint"`
}

// Change is a state of a workspace that is stored: what the calls before it changed.
type Change struct {
	// Calls are those whose changes it covers, in the order in which they ended.
	Calls []protocol.CallID `json:"calls"`
	Time  time.Time         `json:"time"`
	// Set and Removed are how many paths are new or changed, and how many are gone, with all that
	// was below them. Both are 0 when the whole workspace was stored again.
	Set     int `json:"set"`
	Removed int `json:"removed"`
	// Paths are those, sorted; the files of the workspace are below "workspace/".
	Paths []string `json:"paths"`
}

// File is a file, directory or link of a workspace.
type File struct {
	Path   string            `json:"path"`
	Type   protocol.FileType `json:"type"`
	Mode   string            `json:"mode"` // permissions in octal, as "0644"
	Size   int64             `json:"size"`
	Target string            `json:"target,omitempty"` // of a link
	// Change is "created", "changed" or "removed", in lists of what changed.
	Change string `json:"change,omitempty"`
}

// Pulled is what was copied from a workspace into a directory. Every list is of paths, sorted.
type Pulled struct {
	Dir     string   `json:"dir"`
	Written []string `json:"written"`
	Removed []string `json:"removed"`
	// Conflicts changed on both sides and stayed as they were; Theirs are the files that have the
	// session's version of them.
	Conflicts []string `json:"conflicts"`
	Theirs    []string `json:"theirs"`
	// Protected are paths that a session must not change.
	Protected []string `json:"protected"`
}

// Template is a workspace that new sessions begin with.
type Template struct {
	Name  string    `json:"name"`
	Files int       `json:"files"`
	Bytes int64     `json:"bytes"`
	Time  time.Time `json:"time"` // when it was created
}

// LimitUse is how much of a limit is used.
type LimitUse struct {
	// Calls is how many calls of a tenant are accepted and have no result, in the pool that has
	// most of them; Turns the number of its turns, and Stored about how many bytes it has stored.
	// Each is counted only if the limit bounds it.
	Calls  int   `json:"calls,omitempty"`
	Turns  int   `json:"turns,omitempty"`
	Stored int64 `json:"stored,omitempty"`
	// Left is how many calls of a tenant, or requests to a model's provider, the rate allows at
	// once, and TokensLeft how many tokens; less than 1 means that they wait. nil without a rate.
	Left       *float64 `json:"left,omitempty"`
	TokensLeft *float64 `json:"tokens_left,omitempty"`
	// Waiting is how many calls wait in a pool.
	Waiting int `json:"waiting,omitempty"`
}

// Role says what a [Passage] was said or done by.
type Role string

// The roles.
const (
	RoleUser      Role = "user"      // a person, or what began the turn
	RoleAssistant Role = "assistant" // the model
	RoleCall      Role = "call"      // the input of a call; contents of more than 1 KiB are digest and size
	RoleResult    Role = "result"    // what the model read of a call
	RoleSummary   Role = "summary"   // of replies, by a model
	RoleNote      Role = "note"      // of a fork that was merged
	RoleError     Role = "error"     // why a turn failed
)

// Passage is a piece of a conversation, or of a call, that has the words of a search.
type Passage struct {
	SessionID protocol.SessionID `json:"session_id"`
	Turn      int                `json:"turn,omitempty"`
	Step      int                `json:"step,omitempty"`
	Time      time.Time          `json:"time"`
	Role      Role               `json:"role"`
	// Tool and CallID are those of a call and of its result.
	Tool   string          `json:"tool,omitempty"`
	CallID protocol.CallID `json:"call_id,omitempty"`
	// Text is the text around the first word that was found.
	Text string `json:"text"`
	// Score grows with the rank, by BM25: a word counts more if it is rare, and in a short text.
	Score float64 `json:"score"`
}

// Found is what a search has found.
type Found struct {
	// Passages are ranked, the best first.
	Passages []Passage `json:"passages"`
	// More means that there are more than the limit.
	More bool `json:"more,omitempty"`
	// Since is the time before which texts were not searched, because the index has reached its
	// size; nil if everything was searched.
	Since *time.Time `json:"since,omitempty"`
}
