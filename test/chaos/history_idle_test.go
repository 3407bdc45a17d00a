package chaos

import (
	"cmp"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

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
