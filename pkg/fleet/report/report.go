// Package report has the values in which a fleet describes its lanes, calls, workers and sessions.
// A client returns them, and coordinator prints them as JSON.
//
// A report is not one moment: the fleet goes on while it is read.
package report

import (
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
	// WaitsFor is what the lane's next call waits for: a slot, a limit, an earlier call, its time
	// or an operator; "" is none.
	WaitsFor string        `json:"waits_for,omitempty"`
	Running  []RunningCall `json:"running"` // the longest first
}

// LaneList is the lanes of a pool, the one with the oldest call first.
type LaneList struct {
	Lanes   []Lane
	LeftOut int // lanes beyond the limit
	// Incomplete means that there may be lanes that are not even counted.
	Incomplete bool
}

// RunningCall is a call that a worker executes.
type RunningCall struct {
	CallID    protocol.CallID    `json:"call_id"`
	SessionID protocol.SessionID `json:"session_id"`
	Tool      string             `json:"tool"`
	Attempt   int                `json:"attempt"` // from 1
	// RunningMS is how long this attempt has been running, in milliseconds.
	RunningMS int64 `json:"running_ms"`
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
	// WaitsFor is the requirement that no worker of the pool meets, as far as workers answer.
	WaitsFor string `json:"waits_for,omitempty"`
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
