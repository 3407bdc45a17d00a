package chaos

import (
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
