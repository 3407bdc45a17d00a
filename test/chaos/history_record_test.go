package chaos

import (
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Time is nanoseconds of the machine's monotonic clock.
type Time int64

// Never is later than everything that happened.
const Never Time = 1<<63 - 1

// Kind says what a record is about.
type Kind string

// What processes write down.
const (
	KindPut      Kind = "put"      // a caller is about to put a call; the record carries it
	KindAccepted Kind = "accepted" // the call was accepted
	KindRefused  Kind = "refused"  // Put returned an error; whether the fleet has the call is open
	KindCancel   Kind = "cancel"   // a caller is about to ask to cancel a call
	KindHeard    Kind = "heard"    // the request to cancel was accepted
	KindTold     Kind = "told"     // a caller was told a result, or found it
	KindGaveUp   Kind = "gave_up"  // a caller waits no more for a result
	KindStart    Kind = "start"    // a worker starts an execution
	KindEnd      Kind = "end"      // an execution ends; Status says how
	KindStall    Kind = "stall"    // the machine hardly let a worker, or the server or the network, run from At to Until
	KindBlocked  Kind = "blocked"  // what a worker wrote down at At was written at Until only
	KindTrouble  Kind = "trouble"  // a process could not do its work; Message says why
)

// StatusLost is the status of an end that stores nothing: the worker's context said that the lane
// was lost.
const StatusLost protocol.Status = "lost"

// Record is one line that a process wrote down.
type Record struct {
	Kind     Kind              `json:"kind"`
	At       Time              `json:"at"` // monotonic
	Until    Time              `json:"until,omitempty"`
	Wall     time.Time         `json:"wall"` // for people
	CallID   protocol.CallID   `json:"call_id,omitempty"`
	Call     *protocol.Call    `json:"call,omitempty"` // of puts; without its payload
	Worker   protocol.WorkerID `json:"worker,omitempty"`
	Sequence uint64            `json:"seq,omitempty"`
	Attempt  int               `json:"attempt,omitempty"`
	Status   protocol.Status   `json:"status,omitempty"`
	Code     protocol.Code     `json:"code,omitempty"`
	Message  string            `json:"message,omitempty"`
}

// Call is a call and what its caller wrote down about it.
type Call struct {
	protocol.Call

	FirstPut  Time
	Accepted  bool // at least once
	Entered   Time // when the stream took it; 0 when nobody saw it there
	Cancelled bool // somebody asked for it
	Heard     Time // when that was accepted; 0 when it is not known to be
	GaveUp    bool
	Told      []Told
}

// Told is a result as a caller learned it.
type Told struct {
	At Time
	Result
}

// Result is what the checks look at of a result.
type Result struct {
	Status  protocol.Status
	Code    protocol.Code
	Worker  protocol.WorkerID
	Attempt int
}

// Stored is a result in the results stream.
type Stored struct {
	Result

	CallID protocol.CallID
	At     Time // by the server's clock
}

// Execution is one start of a call by a worker.
type Execution struct {
	CallID   protocol.CallID
	Worker   protocol.WorkerID
	Sequence uint64
	Attempt  int
	Start    Time
	End      Time            // [Never] when there is no end
	Status   protocol.Status // of the end
}

// Fault is something that the test did, or a span of time in which it lasted.
type Fault struct {
	// Worker is who it was done to; "" means that it may have touched everybody.
	Worker protocol.WorkerID
	// From is when it can have begun to have an effect, Until when it was over.
	From, Until Time
	// Killed says that the worker was gone at Until.
	Killed bool
	// Stopped says that the worker did nothing from Still to Until.
	Stopped bool
	Still   Time
	// Stalled says that the machine hardly let it run from Still to Until: it may have done
	// something all the same.
	Stalled bool
	// Blocked says that the worker could not write down what it was about to do, and did it after
	// Until.
	Blocked bool
}

// History is everything that is known about a run.
type History struct {
	// Lease is the length of the pool's leases.
	Lease time.Duration
	// Grace is how long after it goes on a stopped worker may need to end what it ran.
	Grace time.Duration
	// Heed is how long after a request to cancel was accepted a worker may start the call, because
	// it did not hear of it yet.
	Heed time.Duration
	// ClockError is how far the times of stored results may be off.
	ClockError Time
	Calls      map[protocol.CallID]*Call
	Executions []Execution
	Stored     []Stored
	Faults     []Fault
	// Troubles are failures of the processes themselves.
	Troubles []string
}
