package chaos

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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
	Others []protocol.CallID // the calls that the text names
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
	v := Violation{Law: law, CallID: id, Text: fmt.Sprintf(format, args...)}
	for _, arg := range args {
		if other, is := arg.(protocol.CallID); is {
			v.Others = append(v.Others, other)
		}
	}
	c.report.Violations = append(c.report.Violations, v)
}

// checkHistory holds a history against the laws. It does not change it.
func checkHistory(h *History) *Report {
	c := check{history: h, report: &Report{}}
	spans := c.spans()
	unknown := c.report.Violations
	report := c.hold(spans)
	if kept := c.withoutAwoken(spans, slices.Concat(unknown, report.Violations)); len(kept) < len(spans) {
		report = c.hold(kept)
	}
	report.Violations = append(unknown, report.Violations...)
	return report
}

// hold holds executions against the laws.
func (c *check) hold(spans []span) *Report {
	c.report = &Report{Calls: len(c.history.Calls), Executions: len(spans), Statuses: map[protocol.Status]int{}}
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

// move is something that happened in a lane.
type move struct {
	at               Time
	waiting, running int // how many calls more have no result, and how many executions more run
}

// idle finds the longest time in which nothing ran in a lane although calls were stored there, and
// nothing else happened to them either. Only calls count of which it is known when the stream took
// them.
func (c *check) idle(spans []span) {
	for _, f := range c.history.Faults {
		if f.Stalled {
			c.report.Stalled += time.Duration(f.Until - f.Still)
		}
	}
	lanes := map[protocol.Lane][]move{}
	results := map[protocol.CallID]Time{}
	for _, s := range c.history.Stored {
		results[s.CallID] = s.At
	}
	for id, call := range c.history.Calls {
		at, settled := results[id]
		if call.Entered == 0 || !settled { // one without a result is a violation of its own
			continue
		}
		lane := call.Lane()
		lanes[lane] = append(lanes[lane], move{at: call.Entered, waiting: 1}, move{at: max(at, call.Entered), waiting: -1})
	}
	for i := range spans {
		s := &spans[i]
		lanes[s.call.Lane()] = append(lanes[s.call.Lane()], move{at: s.Start, running: 1}, move{at: max(s.last, s.Start), running: -1})
	}
	for lane, moves := range lanes {
		if longest := longestIdle(moves); longest > c.report.Idle {
			c.report.Idle, c.report.IdleLane = longest, lane
		}
	}
}

func longestIdle(moves []move) (longest time.Duration) {
	slices.SortStableFunc(moves, func(a, b move) int { return cmp.Compare(a.at, b.at) })
	waiting, running, since := 0, 0, Time(0)
	for _, m := range moves {
		if waiting > 0 && running == 0 {
			longest = max(longest, time.Duration(m.at-since))
		}
		if m.waiting <= 0 || waiting == 0 { // one call more in a lane that waits is no progress
			since = m.at
		}
		waiting, running = waiting+m.waiting, running+m.running
	}
	return longest
}

// best is the greatest value seen for something, and the execution that has it.
type best struct {
	value int64
	of    *span
}

// summary is the greatest of all, and the greatest among exclusive uses.
type summary struct{ any, exclusive best }

// index finds, among uses that were added, the greatest value among those
// that a use conflicts with, without comparing it with each.
type index struct {
	at    map[protocol.ResourceKey]*summary // uses of exactly this key
	below map[protocol.ResourceKey]*summary // uses of this key and all keys below it
}

func newIndex() *index {
	return &index{at: map[protocol.ResourceKey]*summary{}, below: map[protocol.ResourceKey]*summary{}}
}

// add records a value for the uses of an execution.
func (x *index) add(s *span, value int64) {
	for _, use := range s.call.Resources {
		update(x.at, use.Key, use.Access, best{value, s})
		for key := range prefixes(use.Key) {
			update(x.below, key, use.Access, best{value, s})
		}
	}
}

func update(m map[protocol.ResourceKey]*summary, key protocol.ResourceKey, access protocol.Access, b best) {
	have := m[key]
	if have == nil {
		have = &summary{}
		m[key] = have
	}
	have.any = greater(have.any, b)
	if access == protocol.Exclusive {
		have.exclusive = greater(have.exclusive, b)
	}
}

func greater(a, b best) best {
	if a.of == nil || b.of != nil && b.value > a.value {
		return b
	}
	return a
}

// greatest returns the greatest value among what conflicts with the execution.
func (x *index) greatest(s *span) best {
	var out best
	consider := func(have *summary, access protocol.Access) {
		if have == nil {
			return
		}
		if access == protocol.Exclusive {
			out = greater(out, have.any)
			return
		}
		out = greater(out, have.exclusive)
	}
	for _, use := range s.call.Resources {
		consider(x.below[use.Key], use.Access)
		for key := range prefixes(use.Key) {
			consider(x.at[key], use.Access)
		}
	}
	return out
}

// prefixes are the key itself and every key above it, down to its lane.
func prefixes(key protocol.ResourceKey) func(func(protocol.ResourceKey) bool) {
	return func(yield func(protocol.ResourceKey) bool) {
		lane := len(key.Lane())
		for yield(key) && len(key) > lane {
			key = key[:strings.LastIndexByte(string(key), '/')]
		}
	}
}

// span is an execution with the time in which it can have had effects.
type span struct {
	*Execution

	call *Call
	last Time // the end, the death of the worker, or the moment in which it was stopped or stalled for too long
	// late says that the worker was stopped during it for longer than a lease, and
	// since when it goes on; nothing of it may count.
	late   bool
	goesOn Time
}

// soon is how long a worker that could write again may take to find that it has lost what it was
// about to do.
const soon = Time(20 * time.Millisecond)

// spans returns the executions of known calls by their start.
func (c *check) spans() []span {
	faults := map[protocol.WorkerID][]Fault{}
	for _, f := range c.history.Faults {
		faults[f.Worker] = append(faults[f.Worker], f)
	}
	out := make([]span, 0, len(c.history.Executions))
	for i := range c.history.Executions {
		e := &c.history.Executions[i]
		call := c.history.Calls[e.CallID]
		if call == nil {
			c.fault(L3, e.CallID, "it was started by %s, and nobody has put it", e.Worker)
			continue
		}
		s := span{Execution: e, call: call, last: e.End}
		for _, f := range faults[e.Worker] {
			switch {
			case f.Killed && f.Until >= e.Start:
				s.last = min(s.last, f.Until)
			case f.Blocked && f.From <= e.Start && e.Start <= f.Until && e.Status == StatusLost && e.End-f.Until < soon:
				s.last = e.Start // it was lost before it could do anything
			case (f.Stopped || f.Stalled) && f.Until-f.Still > Time(c.history.Lease) && e.Start <= f.Still && f.Still < e.End && f.Still < s.last:
				s.last, s.late, s.goesOn = f.Still, f.Stopped, f.Until
			}
		}
		s.wakeLater(faults[e.Worker], Time(c.history.Grace))
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.Start, b.Start) })
	return out
}

// wakeLater moves the moment since which a stopped worker goes on: the machine may have kept it
// from running right then.
func (s *span) wakeLater(faults []Fault, grace Time) {
	for s.late {
		i := slices.IndexFunc(faults, func(f Fault) bool { return (f.Stopped || f.Stalled) && f.Still <= s.goesOn+grace && f.Until > s.goesOn })
		if i < 0 {
			return
		}
		s.goesOn = faults[i].Until
	}
}

// withoutAwoken returns the executions without those that break a law only since a worker was
// stopped between its last look at its lease and the call's first instruction: the execution began
// when the worker woke, ended at once, and its result does not count. Hardly any stop comes in
// these microseconds. A worker that does not look there begins a call in most lanes that it held,
// so there may be one, and one more for each 50 stops.
func (c *check) withoutAwoken(spans []span, violations []Violation) []span {
	stops, suspects := []Fault{}, map[protocol.CallID]bool{}
	for _, f := range c.history.Faults {
		if f.Stopped && f.Until-f.Still > Time(c.history.Lease) {
			stops = append(stops, f)
		}
	}
	for _, v := range violations {
		suspects[v.CallID] = true
		for _, b := range v.Others {
			suspects[b] = true
		}
	}
	kept := slices.DeleteFunc(slices.Clone(spans), func(s span) bool {
		return suspects[s.CallID] && slices.ContainsFunc(stops, func(f Fault) bool {
			return f.Worker == s.Worker && f.Until <= s.Start && s.Start <= f.Until+soon && s.End <= f.Until+Time(c.history.Grace)
		}) && !slices.ContainsFunc(c.history.Stored, func(r Stored) bool {
			return r.CallID == s.CallID && r.Worker == s.Worker && r.Attempt == s.Attempt
		})
	})
	if len(spans)-len(kept) > 1+len(stops)/50 {
		return spans
	}
	return kept
}

// faulty reports whether any fault lasted at some time between two.
func (h *History) faulty(from, until Time) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.From <= until && f.Until+Time(h.Lease+time.Second) >= from
	})
}

// lost reports whether the worker of an execution can have lost its lane before a
// time: it said so, or a fault touched it since the start.
func (h *History) lost(s *span, before Time) bool {
	return s.Status == StatusLost || h.touched(s.Worker, s.Start, before)
}

// touched reports whether a fault had to do with a worker at some time between two.
func (h *History) touched(worker protocol.WorkerID, from, until Time) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return (f.Worker == "" || f.Worker == worker) && f.From <= until && f.Until+Time(h.Lease+time.Second) >= from
	})
}
