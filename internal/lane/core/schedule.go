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
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/toolfleet/toolfleet/internal/judge"
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
	Accepted time.Time        // by the server's clock
	Invalid  error            // why the call cannot be run at all; it is rejected
	Signer   *judge.Principal // that has signed it; nil where signatures are not checked
	Size     int              // bytes of the body
	Inline   bool             // the ready message itself: there is no mailbox entry

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
	HeldBy      Earlier   // the last earlier call that held it up; zero if none did
	// HeldFor is for how long after its acceptance HeldBy ran, if that had ended when the call was
	// read.
	HeldFor time.Duration

	waited Waited // what the lane had waited then
}

// Earlier names a call that a later one of its lane waited for.
type Earlier struct {
	protocol.CallRef

	Tenant protocol.Tenant
}

// EarlierOf names a call.
func EarlierOf(c *protocol.Call) Earlier {
	return Earlier{protocol.CallRef{SessionID: c.SessionID, ID: c.ID}, c.Tenant}
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

// Finish removes an entry and unblocks the entries that waited for it.
func (s *Schedule) Finish(e *Entry) {
	at := slices.Index(s.entries, e)
	if at < 0 {
		return
	}
	for _, later := range s.entries[at+1:] {
		if later.Call.ConflictsWith(e.Call) {
			later.blockers--
			later.HeldBy = EarlierOf(e.Call)
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

func (s *Schedule) hasEntry(is func(*Entry) bool) bool { return slices.ContainsFunc(s.entries, is) }

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

// Awaits is what a call still waits for, see [protocol.Call.After]. It occupies no slot meanwhile.
// Calls that conflict with it and come after it in its lane wait too; all others go past it.
type Awaits struct {
	Missing []protocol.CallRef // calls that have no result yet, as far as is known
	Ended   protocol.CallRef   // the last of them that ended
	// Unmet is a call that ended otherwise than ok: the call is not run.
	Unmet       *protocol.CallRef
	UnmetStatus protocol.Status
}

// Ended notes how a call ended that entries may wait for. It returns the entries that are not run
// because of that.
func (s *Schedule) Ended(ref protocol.CallRef, status protocol.Status) (unmet []*Entry) {
	for _, e := range s.entries {
		if !slices.Contains(e.Missing, ref) {
			continue
		}
		if e.Missing = slices.DeleteFunc(e.Missing, func(m protocol.CallRef) bool { return m == ref }); status != protocol.StatusOK {
			e.Missing, e.Unmet, e.UnmetStatus = nil, &ref, status
			unmet = append(unmet, e)
		}
		if len(e.Missing) == 0 {
			s.awaiting--
			e.Ended = ref
		}
	}
	return unmet
}

// Awaiting returns the entries that wait for other calls and for no earlier one of their lane.
func (s *Schedule) Awaiting() (all []*Entry) {
	if s.awaiting == 0 {
		return nil
	}
	for _, e := range s.entries {
		if len(e.Missing) > 0 && e.blockers == 0 {
			all = append(all, e)
		}
	}
	return all
}

// Stuck reports whether nothing runs, and nothing can start before a call of another lane, or one
// that was not read yet, ends. More of the mailbox is read then, because it may have that call.
func (s *Schedule) Stuck() bool {
	return s.awaiting > 0 && !s.hasEntry(func(e *Entry) bool { return e.Running || e.startable() })
}

func (e *Entry) startable() bool { return !e.Running && e.blockers == 0 && len(e.Missing) == 0 }

// unmetError is why a call that waits for others is not run at an age; nil if it may still be. A
// call that ended otherwise than ok will never end ok, so no holder has started a call that waits
// for it.
func (e *Entry) unmetError(age time.Duration) *protocol.Error {
	message := ""
	switch {
	case e.Unmet != nil:
		message = fmt.Sprintf("call %s, which the call waits for, ended as %s", e.Unmet, e.UnmetStatus)
	case len(e.Missing) > 0 && !e.MayHaveRun() && (e.Call.Expired(age) || age >= e.Call.MaxQueue()):
		message = fmt.Sprintf("call %s, which the call waits for, had no result after %s", e.Missing[0], age.Round(time.Millisecond))
	default:
		return nil
	}
	return protocol.Errorf(protocol.CodeAfterUnmet, "%s; the call was not run", message)
}

// Wait is what a held lane waits for before it starts a call that no earlier call holds up.
type Wait uint8

// Every wait.
const (
	WaitsForNothing Wait = iota
	WaitsForSlot
	WaitsForLimit // of calls at once
	WaitsForRate
	WaitsForResume // the lane is paused
	waits
)

// Waited is for how long something waited, by what for.
type Waited [waits]time.Duration

// WaitClock measures for how long the calls of a held lane wait, and what for. The lane waits as a
// whole, so a call costs two readings of the clock. The zero value waits for nothing. It is not
// safe for concurrent use.
type WaitClock struct {
	total Waited
	wait  Wait
	since time.Time
}

// Set notes what the lane waits for from now on.
func (c *WaitClock) Set(wait Wait, now time.Time) {
	if wait != c.wait {
		c.total = c.read(now)
		c.wait, c.since = wait, now
	}
}

func (c *WaitClock) read(now time.Time) Waited {
	total := c.total
	if c.wait != WaitsForNothing {
		total[c.wait] += now.Sub(c.since)
	}
	return total
}

// Await notes that a call waits only for calls of its After, if that was not noted before.
func (c *WaitClock) Await(e *Entry, now time.Time) {
	if e.AwaitsSince.IsZero() {
		e.AwaitsSince = now
	}
}

// Free notes that no earlier call holds a call up any more, if that was not noted before.
func (c *WaitClock) Free(e *Entry, now time.Time) {
	if e.FreeSince.IsZero() {
		e.FreeSince, e.waited = now, c.read(now)
	}
}

// Start notes that a call starts, and for how long it waited since it was free.
func (c *WaitClock) Start(e *Entry, now time.Time) {
	c.Free(e, now)
	e.Waited = c.read(now)
	for i := range e.Waited {
		e.Waited[i] -= e.waited[i]
	}
}
