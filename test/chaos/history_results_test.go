package chaos

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// results checks that every accepted call has one result, the same for everybody,
// and that each says what happened.
func (c *check) results(byCall map[protocol.CallID][]*span) {
	stored := map[protocol.CallID][]Stored{}
	for _, s := range c.history.Stored {
		stored[s.CallID] = append(stored[s.CallID], s)
		if c.history.Calls[s.CallID] == nil {
			c.fault(L3, s.CallID, "it has a result, and nobody has put it")
		}
	}
	for id, call := range c.history.Calls {
		c.told(call, stored[id])
		accepted := call.Accepted || call.Entered != 0 || len(byCall[id]) > 0 // its caller may not have lived to learn it
		if accepted {
			c.report.Accepted++
		}
		if len(stored[id]) == 0 {
			if accepted {
				c.report.Lost++
				c.fault(L3, id, "accepted, and it has no result")
			}
			continue
		}
		if len(stored[id]) > 1 {
			c.report.Double++
			c.fault(L3, id, "%d results are stored", len(stored[id]))
		}
		result := stored[id][0]
		c.report.Statuses[result.Status]++
		c.grounds(call, result, byCall[id])
		for _, s := range byCall[id] {
			if s.Start > result.At+c.history.ClockError && !c.wasBeingSent(result, byCall[id], s.Start) {
				c.fault(L3, id, "attempt %d started by %s %s after the result was stored", s.Attempt, s.Worker, until(s.Start, result.At))
			}
		}
	}
}

// told checks that whatever the caller learned is the stored result.
func (c *check) told(call *Call, stored []Stored) {
	for _, t := range call.Told {
		if len(stored) == 0 {
			c.fault(L3, call.ID, "the caller was told %s, and nothing is stored", t.Status)
		} else if t.Result != stored[0].Result {
			c.report.Double++
			c.fault(L3, call.ID, "the caller was told %+v, stored is %+v", t.Result, stored[0].Result)
		}
	}
	if len(call.Told) > 0 {
		c.report.Slowest = max(c.report.Slowest, time.Duration(call.Told[0].At-call.FirstPut))
	}
}

// grounds checks that a result is not invented.
func (c *check) grounds(call *Call, r Stored, executions []*span) {
	invented := func(why string) { c.fault(L3, call.ID, "result %+v is invented: %s", r.Result, why) }
	switch r.Status {
	case protocol.StatusOK, protocol.StatusFailed:
		if r.Code == protocol.CodeAttemptsExhausted {
			c.exhausted(call, r, executions)
			return
		}
		c.ended(call, r, executions)
	case protocol.StatusTimeout:
		c.ended(call, r, executions)
	case protocol.StatusCancelled:
		if !call.Cancelled {
			invented("nobody asked to cancel it")
		}
		if r.Attempt > 0 {
			c.ended(call, r, executions)
		} else if len(executions) > 0 {
			invented("it is said not to have started")
		}
	case protocol.StatusRejected:
		waited := r.Code == protocol.CodeQueueTimeout && call.QueueTimeout > 0 || r.Code == protocol.CodeDeadline && !call.Deadline.IsZero()
		if !waited {
			invented("the call has no such limit")
		}
		if len(executions) > 0 {
			invented("it is said not to have started")
		}
	case protocol.StatusOutcomeUnknown:
		mayNotRunAgain := call.Delivery == protocol.AtMostOnce || call.Cancelled || !call.Deadline.IsZero() || call.QueueTimeout > 0
		if !mayNotRunAgain {
			invented("the call may be run again")
		}
		if !c.lostAll(executions, r.At) || len(executions) == 0 && !c.history.faulty(call.FirstPut, r.At) {
			invented("no worker was lost")
		}
	default:
		invented("no such status")
	}
}

// ended checks that an execution ended with the result, and in time.
func (c *check) ended(call *Call, r Stored, executions []*span) {
	at := slices.IndexFunc(executions, func(s *span) bool { return s.Worker == r.Worker && s.Attempt == r.Attempt })
	if at < 0 {
		c.fault(L3, call.ID, "result %+v is invented: there was no such execution", r.Result)
		return
	}
	s := executions[at]
	switch {
	case s.End == Never || s.Status != r.Status:
		c.fault(L3, call.ID, "result %+v is invented: that execution ended %q", r.Result, s.Status)
	case s.End > r.At+c.history.ClockError:
		c.fault(L3, call.ID, "result %+v was stored %s before that execution ended", r.Result, until(s.End, r.At))
	case s.late:
		c.fault(L7, call.ID, "result %+v is of a worker that slept through its lease during that execution", r.Result)
	}
	for _, f := range c.history.Faults {
		asleep := f.Worker == r.Worker && f.Stopped && f.Until-f.Still > Time(c.history.Lease)
		if asleep && s.End <= f.Still && r.At >= f.Until && !c.history.serverStalled(f.Until, r.At) && !c.wasBeingSent(r, executions, r.At) {
			c.fault(L7, call.ID, "result %+v was stored %s after the worker had slept through its lease", r.Result, until(r.At, f.Until))
		}
	}
}

// sending is how long after the end of an execution a worker may take to send its result.
const sending = Time(50 * time.Millisecond)

// wasBeingSent reports whether a worker was stopped between its look at its lease and the write of
// a result. The result is stored when the worker wakes. The next holder of the lane, which looked
// for a result before, may start the call a moment later.
func (c *check) wasBeingSent(r Stored, executions []*span, started Time) bool {
	at := slices.IndexFunc(executions, func(s *span) bool { return s.Worker == r.Worker && s.Attempt == r.Attempt })
	return at >= 0 && started <= r.At+Time(c.history.Grace) && slices.ContainsFunc(c.history.Faults, func(f Fault) bool {
		return f.Stopped && f.Worker == r.Worker && executions[at].End <= f.Still && f.Still <= executions[at].End+sending &&
			f.Until <= r.At && r.At <= f.Until+Time(c.history.Grace)
	})
}

// serverStalled reports whether the machine kept the server from running at a time, and until
// shortly before another: what it stores then may have been sent long before.
func (h *History) serverStalled(at, stored Time) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Stalled && f.Worker == "" && f.From <= at && at <= f.Until+Time(h.Grace) && stored <= f.Until+Time(h.Grace)
	})
}

// exhausted checks that a call was given up for a reason. Starts are counted by
// marks, so there may have been fewer executions than attempts.
func (c *check) exhausted(call *Call, r Stored, executions []*span) {
	if r.Attempt != call.Attempts() {
		c.fault(L3, call.ID, "given up after %d attempts of %d", r.Attempt, call.Attempts())
	}
	if !c.lostAll(executions, r.At) {
		c.fault(L3, call.ID, "given up after %d executions, and one of their workers was not lost", len(executions))
	}
}

// lostAll reports whether each execution's worker was disturbed before a time.
func (c *check) lostAll(executions []*span, before Time) bool {
	for _, s := range executions {
		if !c.history.lost(s, before) {
			return false
		}
	}
	return true
}

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

// newHistory returns an empty history.
func newHistory() *History { return &History{Calls: map[protocol.CallID]*Call{}} }

// Read adds the records of one process. A last line that was cut short, because
// the process was killed, is ignored.
func (h *History) Read(log io.Reader) error {
	open := map[execution]int{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var r Record
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("record %q: %w", line, err)
		}
		if err := h.add(&r, open); err != nil {
			return err
		}
	}
}

// execution tells the executions of one process apart.
type execution struct {
	call    protocol.CallID
	attempt int
}

var errUnknownRecord = errors.New("record of an unknown kind, or without its beginning")

func (h *History) add(r *Record, open map[execution]int) error {
	id := execution{r.CallID, r.Attempt}
	switch r.Kind {
	case KindStart:
		open[id] = len(h.Executions)
		h.Executions = append(h.Executions, Execution{
			CallID: r.CallID, Worker: r.Worker, Sequence: r.Sequence, Attempt: r.Attempt, Start: r.At, End: Never,
		})
		return nil
	case KindEnd:
		at, known := open[id]
		if !known {
			return fmt.Errorf("%w: end of call %s", errUnknownRecord, r.CallID)
		}
		delete(open, id)
		h.Executions[at].End, h.Executions[at].Status = r.At, r.Status
		return nil
	case KindTrouble:
		h.Troubles = append(h.Troubles, r.Message)
		return nil
	case KindStall, KindBlocked:
		h.Faults = append(h.Faults, Fault{
			Worker: r.Worker, From: r.At, Still: r.At, Until: r.Until, Stalled: r.Kind == KindStall, Blocked: r.Kind == KindBlocked,
		})
		return nil
	case KindPut:
		if h.Calls[r.CallID] == nil {
			h.Calls[r.CallID] = &Call{Call: *r.Call, FirstPut: r.At}
		}
		return nil
	}
	c := h.Calls[r.CallID]
	if c == nil {
		return fmt.Errorf("%w: %s of call %s", errUnknownRecord, r.Kind, r.CallID)
	}
	switch r.Kind {
	case KindAccepted:
		c.Accepted = true
	case KindRefused: // what became of it is open; its result will tell
	case KindCancel:
		c.Cancelled = true
	case KindHeard:
		c.Heard = r.At
	case KindTold:
		c.Told = append(c.Told, Told{r.At, Result{r.Status, r.Code, r.Worker, r.Attempt}})
	case KindGaveUp:
		c.GaveUp = true
	default:
		return fmt.Errorf("%w: kind %q", errUnknownRecord, r.Kind)
	}
	return nil
}
