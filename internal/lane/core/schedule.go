// Package core is the part of the lane engine that decides: which calls of a lane may start,
// whether a worker may still act, what to do about somebody else's claim, and what becomes of a
// call after a crash. It does no input or output and has no clock: whoever asks tells the time. So
// it runs in the same way under a worker and under a simulation of the streams.
package core

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Entry is one call of a held lane, from when it is read until it is settled.
type Entry struct {
	History
	Progress

	Seq      uint64 // stream sequence: the order of the lane
	Call     *protocol.Call
	Full     *protocol.Call // the call with a payload that its message could not carry; nil for others
	Header   map[string][]string
	Accepted time.Time // by the server's clock
	Invalid  error     // why the call cannot be run at all; it is rejected
	Size     int       // bytes of the body
	Inline   bool      // the ready message itself: there is no mailbox entry

	blockers int // earlier unfinished entries that it conflicts with
}

// History is what is known of what happened to a call before its turn.
type History struct {
	// MayHaveStarted says that a worker that was lost may have started the call: it was there at
	// the claim, and nothing without a result was before it.
	MayHaveStarted bool
	MayBeOld       bool     // it may have been settled and removed before the claim
	SettledBefore  bool     // its result was stored already when its turn came
	Starts         int      // start marks that are known
	Marked         bool     // somebody else started it, or may have, as it says itself
	OwnMarks       []uint64 // start marks that this holder stored
}

// Progress is what happens to a call here.
type Progress struct {
	Running   bool
	Stop      func(error)
	Cancelled bool // somebody asked to cancel it
	// Unsettled says, once the call has started, that it surely had no result then. The goroutine
	// that runs the call sets it.
	Unsettled atomic.Bool
}

// MayHaveResult reports whether something says that the call may be settled although it is there:
// its holder was lost before it was removed, the answer may be an old one, or it was put before.
func (e *Entry) MayHaveResult() bool { return e.MayHaveStarted || e.MayBeOld || e.Call.Again }

// MayHaveRun reports whether somebody else may have started the call.
func (e *Entry) MayHaveRun() bool { return e.MayHaveStarted || e.Marked }

// Schedule decides what of a lane may run. It holds unfinished entries in
// sequence order; an entry may start when it conflicts with none before it. So
// conflicting entries run in order, and nothing waits without a conflict. It is
// not safe for concurrent use.
type Schedule struct {
	entries []*Entry
	byID    map[protocol.CallID]*Entry
	bytes   int
}

// NewSchedule is one without entries.
func NewSchedule() *Schedule { return &Schedule{byID: map[protocol.CallID]*Entry{}} }

// Add appends an entry, whose sequence must be greater than all before. It
// reports false, and does nothing, when the call is in hand already.
func (s *Schedule) Add(e *Entry) bool {
	if _, known := s.byID[e.Call.ID]; known {
		return false
	}
	for _, earlier := range s.entries {
		if earlier.Call.ConflictsWith(e.Call) {
			e.blockers++
		}
	}
	s.entries = append(s.entries, e)
	s.byID[e.Call.ID] = e
	s.bytes += e.Size
	return true
}

// Startable returns the entries that may start now, in order. Whoever starts one marks it as
// running.
func (s *Schedule) Startable() []*Entry {
	var out []*Entry
	for _, e := range s.entries {
		if !e.Running && e.blockers == 0 {
			out = append(out, e)
		}
	}
	return out
}

// Finish removes an entry and unblocks those that waited for it.
func (s *Schedule) Finish(e *Entry) {
	at := slices.Index(s.entries, e)
	if at < 0 {
		return
	}
	for _, later := range s.entries[at+1:] {
		if later.Call.ConflictsWith(e.Call) {
			later.blockers--
			// Nobody can have started it before this one had a result.
			later.MayHaveStarted = later.MayHaveStarted && e.SettledBefore
		}
	}
	s.entries = slices.Delete(s.entries, at, at+1)
	delete(s.byID, e.Call.ID)
	s.bytes -= e.Size
}

// MayRefuse reports whether a call that waits may be answered wherever it stands, because it is not
// to be started: not while it may have been started by somebody else, which shows when its turn
// comes, unless a call before it shows that nobody can have.
func (s *Schedule) MayRefuse(e *Entry) bool {
	if e.Running {
		return false
	}
	e.MayHaveStarted = e.MayHaveStarted && !s.cannotHaveStarted(e)
	return !e.MayHaveStarted || e.blockers == 0
}

// cannotHaveStarted reports whether a call before this one, which it conflicts with, had no result
// when it was started here: then nobody can have started this one.
func (s *Schedule) cannotHaveStarted(e *Entry) bool {
	for _, earlier := range s.entries {
		if earlier == e {
			return false
		}
		if earlier.Unsettled.Load() && earlier.Call.ConflictsWith(e.Call) {
			return true
		}
	}
	return false
}

func (s *Schedule) any(is func(*Entry) bool) bool { return slices.ContainsFunc(s.entries, is) }

// Find returns the entry of a call in hand; nil when there is none.
func (s *Schedule) Find(id protocol.CallID) *Entry { return s.byID[id] }

// Entries returns all entries in order. The slice is the schedule's own.
func (s *Schedule) Entries() []*Entry { return s.entries }

// Len is the number of entries.
func (s *Schedule) Len() int { return len(s.entries) }

// Bytes is the size of their bodies.
func (s *Schedule) Bytes() int { return s.bytes }
