package lane

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// entry is one call of a held lane, from when it is read until it is settled.
type entry struct {
	seq      uint64 // stream sequence: the order of the lane
	call     *protocol.Call
	full     *protocol.Call // the call with a payload that its message could not carry; nil for others
	header   nats.Header
	accepted time.Time // by the server's clock
	fault    error     // why the call cannot be run at all; it is rejected
	size     int       // bytes of the body
	inline   bool      // the ready message itself: there is no mailbox entry

	maySettled     bool     // settled, but not removed, by a worker that was lost
	settledBefore  bool     // its result was stored already when its turn came
	mayHaveStarted bool     // by a worker that was lost: nothing without a result was before it
	starts         int      // start marks that are known
	marked         bool     // somebody else started it, or may have, as it says itself
	ownMarks       []uint64 // start marks that this holder stored
	unsure         int      // the start mark that this holder may have stored
	cancelled      bool     // somebody asked to cancel it

	lookup *lookup // for its result; nil before the first

	unsettled atomic.Bool // it surely had no result when it was started

	running  bool
	blockers int // earlier unfinished entries that it conflicts with
	stop     func(error)
}

// LateAfter is how long a call may take from its publisher to the stream, by the servers' clock, until it may have been sent again meanwhile.
const LateAfter = 2 * time.Second

// mayHaveResult reports whether the call may be settled although it is there: it was not removed, or was put before, or a server
// that stood still brought it when its publisher had sent it again.
func (e *entry) mayHaveResult() bool {
	sent, err := strconv.ParseInt(e.header.Get(protocol.HeaderSent), 10, 64)
	return e.maySettled || e.call.Again || err == nil && e.accepted.Sub(time.UnixMilli(sent)) > LateAfter
}

// mayHaveRun reports whether somebody else may have started the call.
func (e *entry) mayHaveRun() bool { return e.mayHaveStarted || e.marked }

// schedule decides what of a lane may run. It holds unfinished entries in
// sequence order; an entry may start when it conflicts with none before it. So
// conflicting entries run in order, and nothing waits without a conflict. It is
// pure, and not safe for concurrent use.
type schedule struct {
	entries []*entry
	byID    map[protocol.CallID]*entry
}

func newSchedule() *schedule { return &schedule{byID: map[protocol.CallID]*entry{}} }

// add appends an entry, whose sequence must be greater than all before. It
// reports false, and does nothing, when the call is in hand already.
func (s *schedule) add(e *entry) bool {
	if _, known := s.byID[e.call.ID]; known {
		return false
	}
	for _, earlier := range s.entries {
		if earlier.call.ConflictsWith(e.call) {
			e.blockers++
		}
	}
	s.entries = append(s.entries, e)
	s.byID[e.call.ID] = e
	return true
}

// startable returns the entries that may start now, in order. Whoever starts one marks it as running.
func (s *schedule) startable() []*entry {
	var out []*entry
	for _, e := range s.entries {
		if !e.running && e.blockers == 0 {
			out = append(out, e)
		}
	}
	return out
}

// finish removes an entry and unblocks those that waited for it.
func (s *schedule) finish(e *entry) {
	at := slices.Index(s.entries, e)
	if at < 0 {
		return
	}
	for _, later := range s.entries[at+1:] {
		if later.call.ConflictsWith(e.call) {
			later.blockers--
			// Nobody can have started it before this one had a result.
			later.mayHaveStarted = later.mayHaveStarted && e.settledBefore
		}
	}
	s.entries = slices.Delete(s.entries, at, at+1)
	delete(s.byID, e.call.ID)
}

// find returns the entry of a call in hand; nil when there is none.
func (s *schedule) find(id protocol.CallID) *entry { return s.byID[id] }

func (s *schedule) len() int { return len(s.entries) }
