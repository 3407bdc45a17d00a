package chaos

import (
	"fmt"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Law names a promise; see docs/guarantees.md.
type Law string

// The laws that a history can show to be broken.
const (
	L1 Law = "L1 exclusive"
	L2 Law = "L2 order"
	L3 Law = "L3 one result"
	L6 Law = "L6 crash"
	L7 Law = "L7 zombie"
	L8 Law = "L8 at most once"
	// Cancel is that a call does not start any more when a request to cancel it was accepted.
	Cancel Law = "cancel"
)

// Violation is one fact that breaks a law.
type Violation struct {
	Law    Law
	CallID protocol.CallID
	Text   string
}

// String tells it in one line.
func (v Violation) String() string { return fmt.Sprintf("%s: call %s: %s", v.Law, v.CallID, v.Text) }

// Report is what a check found.
type Report struct {
	Calls      int // put
	Accepted   int
	Executions int
	Rerun      int // executions beyond the first of their call
	Lost       int // accepted, and no result
	Double     int // more than one result, or results that differ
	Slowest    time.Duration
	// Idle is the longest time in which nothing happened in a lane although calls waited there, and
	// IdleLane that lane. See [Call.Entered].
	Idle       time.Duration
	IdleLane   protocol.Lane
	Stalled    time.Duration // how long the machine kept processes from running, all together
	Statuses   map[protocol.Status]int
	Violations []Violation
}

// check is a check under way.
type check struct {
	history *History
	report  *Report
}

func (c *check) fault(law Law, id protocol.CallID, format string, args ...any) {
	c.report.Violations = append(c.report.Violations, Violation{law, id, fmt.Sprintf(format, args...)})
}

// checkHistory holds a history against the laws. It does not change it.
func checkHistory(h *History) *Report {
	c := &check{history: h, report: &Report{
		Calls: len(h.Calls), Executions: len(h.Executions), Statuses: map[protocol.Status]int{},
	}}
	spans := c.spans()
	byLane := map[protocol.Lane][]*span{}
	byCall := map[protocol.CallID][]*span{}
	for i := range spans {
		s := &spans[i]
		byLane[s.call.Lane()] = append(byLane[s.call.Lane()], s)
		byCall[s.CallID] = append(byCall[s.CallID], s)
	}
	for _, lane := range byLane {
		c.lane(lane)
	}
	for _, attempts := range byCall {
		c.attempts(attempts)
	}
	for i := range spans {
		c.zombie(&spans[i])
		c.cancelled(&spans[i])
	}
	c.results(byCall)
	c.idle(spans)
	slices.SortFunc(c.report.Violations, func(a, b Violation) int {
		return slices.Compare([]string{string(a.Law), string(a.CallID), a.Text}, []string{string(b.Law), string(b.CallID), b.Text})
	})
	return c.report
}

// lane checks the executions of one lane, by their start: no two that conflict
// overlap, and those that conflict start in stream order.
func (c *check) lane(executions []*span) {
	ends, sequences := newIndex(), newIndex()
	for _, s := range executions {
		if b := ends.greatest(s); b.of != nil && Time(b.value) > s.Start && b.of.CallID != s.CallID {
			c.fault(L1, s.CallID, "started by %s (attempt %d, sequence %d) at %d, %s before the end of call %s by %s (attempt %d, sequence %d)",
				s.Worker, s.Attempt, s.Sequence, s.Start, until(Time(b.value), s.Start), b.of.CallID, b.of.Worker, b.of.Attempt, b.of.Sequence)
		}
		if b := sequences.greatest(s); b.of != nil && uint64(b.value) > s.Sequence {
			c.fault(L2, s.CallID, "sequence %d started by %s (attempt %d), %s after sequence %d (call %s by %s, attempt %d)",
				s.Sequence, s.Worker, s.Attempt, until(s.Start, b.of.Start), b.value, b.of.CallID, b.of.Worker, b.of.Attempt)
		}
		ends.add(s, int64(s.last))
		sequences.add(s, int64(s.Sequence))
	}
}

func until(later, earlier Time) time.Duration {
	if later == Never {
		return time.Duration(Never)
	}
	return time.Duration(later - earlier)
}

// attempts checks the executions of one call, by their start.
func (c *check) attempts(executions []*span) {
	c.report.Rerun += len(executions) - 1
	call := executions[0].call
	if call.Delivery == protocol.AtMostOnce && len(executions) > 1 {
		c.fault(L8, call.ID, "started %d times, the second time by %s", len(executions), executions[1].Worker)
	}
	if len(executions) > call.Attempts() {
		c.fault(L6, call.ID, "started %d times of %d that are allowed", len(executions), call.Attempts())
	}
	for i, s := range executions {
		if s.Attempt > call.Attempts() {
			c.fault(L6, call.ID, "attempt %d of %d that are allowed", s.Attempt, call.Attempts())
		}
		if i == 0 {
			continue
		}
		before := executions[i-1]
		if before.last > s.Start {
			c.fault(L1, call.ID, "attempt %d started by %s %s before the end of attempt %d by %s",
				s.Attempt, s.Worker, until(before.last, s.Start), before.Attempt, before.Worker)
		}
		if before.Attempt >= s.Attempt {
			c.fault(L6, call.ID, "attempt %d by %s came after attempt %d by %s", s.Attempt, s.Worker, before.Attempt, before.Worker)
		}
		if !c.history.lost(before, s.Start) {
			c.fault(L6, call.ID, "attempt %d started by %s, and worker %s of the attempt before was not lost", s.Attempt, s.Worker, before.Worker)
		}
	}
}

// cancelled checks that a call did not start long after a request to cancel it was accepted.
func (c *check) cancelled(s *span) {
	heard := s.call.Heard
	if heard == 0 || s.Start < heard+Time(c.history.Heed) || c.history.touched(s.Worker, heard, s.Start) {
		return
	}
	c.fault(Cancel, s.CallID, "attempt %d started by %s %s after it was cancelled", s.Attempt, s.Worker, until(s.Start, heard))
}

// zombie checks that a worker that was stopped for longer than its lease ends what
// it ran soon after it goes on. That nothing of it counts is checked with the results.
func (c *check) zombie(s *span) {
	if !s.late || s.End == Never {
		return
	}
	if over := s.End - s.goesOn; over > Time(c.history.Grace) {
		c.fault(L7, s.CallID, "attempt %d by %s went on for %s after the worker had slept through its lease", s.Attempt, s.Worker, time.Duration(over))
	}
}
