// Package core has the decisions of the lane engine, without I/O and without a clock: the caller
// passes the time, and interfaces do the reads and writes. So the same code runs in a worker and in
// a simulation of the streams, which tries orders of events that no test of real servers reaches.
//
//	which calls of a lane may start now     Schedule: those that conflict with no earlier call
//	may the worker still act                Lease: until four fifths of a lease after the last renewal
//	may another worker be expired           Sighting: its heartbeat has not changed for a lease
//	what to do about a stored claim         Claiming.Decide: replace, keep, wait or decline
//	start a call, or answer it unstarted    Entry.Begin
//	may one more call of a lane start       Limit: concurrent calls, and a rate that outlives holders
//	for how long a call waits, and why      WaitClock
//	let a lane go                           Release: delete ready message, last look, delete claim
//
// An [Entry] is one call of a held lane, from its read until its result is stored.
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
	Accepted time.Time       // by the server's clock
	Invalid  error           // why the call cannot be run at all; it is rejected
	Bound    protocol.Tenant // to which its signer is bound, "" of any
	Size     int             // bytes of the body
	Inline   bool            // the ready message itself: there is no mailbox entry

	blockers int // earlier unfinished entries that it conflicts with
}

// History is what a holder knows about earlier attempts of a call.
type History struct {
	// MayHaveStarted says that a previous holder, which was lost, may have started the call: the
	// call was stored before the claim, and every earlier call that conflicts with it has a result.
	MayHaveStarted bool
	MayBeOld       bool     // the read may be stale: the call may have been settled and deleted before the claim
	NoResult       bool     // the call was first sent in this hold, which has not settled it
	SettledBefore  bool     // its result was stored already when its turn came
	Starts         int      // start marks that are known
	Marked         bool     // another holder stored a start mark
	OwnMarks       []uint64 // start marks that this holder stored
}

// Progress is the state of a call under this holder.
type Progress struct {
	Running   bool
	Stop      func(error)
	Cancelled bool // a cancel request was read
	Reserved  bool // a token of the lane's rate is reserved for it, see [Limit]
	Waits
	Awaits
	// Unsettled says that the call certainly had no result when it started here. The goroutine that
	// runs the call sets it.
	Unsettled atomic.Bool
	// Failed is the result of the last attempt, which the call's Retry has started again at
	// RetryAt, and Tries are all such attempts. The goroutine that runs the call sets them.
	Failed  *protocol.Result
	RetryAt time.Time
	Tries   []protocol.Try
}

// MayHaveResult reports whether a stored call may have a result: its holder was lost before it
// deleted the call, the read may be stale, or the call was sent twice.
func (e *Entry) MayHaveResult() bool { return e.MayHaveStarted || e.MayBeOld || e.Call.Again }

// MayHaveRun reports whether another holder may have started the call.
func (e *Entry) MayHaveRun() bool { return e.MayHaveStarted || e.Marked }

// IsFirst reports whether this is the first attempt of a call that may be repeated, as far as the
// entry says.
func (e *Entry) IsFirst() bool {
	return !e.MayHaveResult() && !e.MayHaveRun() && e.Call.Delivery != protocol.AtMostOnce
}

// Waits is for how long a call waited under this holder, see [WaitClock].
type Waits struct {
	AwaitsSince time.Time // when only calls of its After held it up; zero if they never did
	FreeSince   time.Time // when no earlier call held it up any more; zero before
	Waited      Waited    // from then until it started

	waited Waited // what the lane had waited then
}

// Schedule decides which calls of a lane may run. It has the unfinished entries in sequence order;
// an entry may start when it conflicts with no earlier one, and waits for no other call. So
// conflicting calls run in order, and a call waits only for calls that it conflicts with, or names.
// It is not safe for concurrent use.
type Schedule struct {
	entries []*Entry
	byID    map[protocol.CallID]*Entry
	bytes   int

	awaiting int // entries that wait for other calls
}

// NewSchedule is one without entries.
func NewSchedule() *Schedule { return &Schedule{byID: map[protocol.CallID]*Entry{}} }

// Add appends an entry, whose sequence must be greater than all before. It
// reports false, and does nothing, when it has the call already.
func (s *Schedule) Add(e *Entry) bool {
	if _, known := s.byID[e.Call.ID]; known {
		return false
	}
	for _, earlier := range s.entries {
		if earlier.Call.ConflictsWith(e.Call) {
			e.blockers++
		}
	}
	if e.Missing = slices.Clone(e.Call.After); len(e.Missing) > 0 {
		s.awaiting++
	}
	s.entries = append(s.entries, e)
	s.byID[e.Call.ID] = e
	s.bytes += e.Size
	return true
}

// Startable returns the entries that may start now, in order. The caller sets Running when it
// starts one.
func (s *Schedule) Startable() []*Entry {
	var out []*Entry
	for _, e := range s.entries {
		if e.startable() {
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
			// A previous holder cannot have started it before this one had a result.
			later.MayHaveStarted = later.MayHaveStarted && e.SettledBefore
		}
	}
	if len(e.Missing) > 0 {
		s.awaiting--
	}
	s.entries = slices.Delete(s.entries, at, at+1)
	delete(s.byID, e.Call.ID)
	s.bytes -= e.Size
}

// MayRefuse reports whether a waiting call may be answered out of order, without being started. If
// a previous holder may have started the call, it is answered only when its turn comes, unless an
// earlier call proves that it was not started.
func (s *Schedule) MayRefuse(e *Entry) bool {
	if e.Running {
		return false
	}
	e.MayHaveStarted = e.MayHaveStarted && !s.cannotHaveStarted(e)
	return !e.MayHaveStarted || e.blockers == 0
}

// cannotHaveStarted reports whether an earlier call that conflicts with this one had no result when
// it started here: then no previous holder can have started this one.
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

// RetryAt is when the first call that failed is started again; zero when none is.
func (s *Schedule) RetryAt() (first time.Time) {
	for _, e := range s.entries {
		if !e.Running && !e.RetryAt.IsZero() && (first.IsZero() || e.RetryAt.Before(first)) {
			first = e.RetryAt
		}
	}
	return first
}

// Find returns the entry of a call; nil when the schedule does not have it.
func (s *Schedule) Find(id protocol.CallID) *Entry { return s.byID[id] }

// Entries returns all entries in order. The slice is the schedule's own.
func (s *Schedule) Entries() []*Entry { return s.entries }

// Len is the number of entries.
func (s *Schedule) Len() int { return len(s.entries) }

// Bytes is the size of their bodies.
func (s *Schedule) Bytes() int { return s.bytes }
