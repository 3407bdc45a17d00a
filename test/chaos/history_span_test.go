package chaos

import (
	"cmp"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
