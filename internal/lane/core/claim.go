package core

import (
	"errors"
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Claiming is a claim that is being stored, on the condition that the lane's record has the
// sequence Expect; 0 means that there is none. After a refusal or a missing answer the worker reads
// the record and calls [Claiming.Decide]. So each claim is stored at most once.
type Claiming struct {
	*wire.Claim

	Expect uint64
}

// Step is what a claiming worker does after it has read the stored claim.
type Step uint8

// Every step.
const (
	// StepStore stores the claim on its new condition.
	StepStore Step = iota
	// StepHeld holds the lane: an earlier try, whose answer was lost, has stored the claim.
	StepHeld
	// StepDecline leaves the ready message to the lane's holder, which claimed by it.
	StepDecline
	// StepWait tries again in a moment: the holder is releasing the lane.
	StepWait
)

// Decide decides what to do about the stored claim and its sequence; the zero claim is none.
// isExpired reports whether an incarnation's heartbeat is expired, which is final.
//
// A holder claims by one ready message, and deletes it before its claim. So if c has a newer ready
// message than the stored claim, the holder is about to delete that claim.
func (c *Claiming) Decide(other *wire.Claim, seq uint64, isExpired func(wire.IncarnationID) bool) Step {
	if seq > 0 && other.Token == c.Token {
		c.Interrupted, c.Spent = other.Interrupted, other.Spent // as they were when it was stored
		return StepHeld
	}
	free := other.Incarnation == "" || other.Incarnation == c.Incarnation // this incarnation does not hold the lane, so it has started nothing
	expired := !free && isExpired(other.Incarnation)
	switch {
	case free || expired:
		c.Interrupted, c.Spent, c.Expect = other.Interrupted || expired, other.Spent, seq
		if expired {
			c.Spent = AllSpent
		}
		return StepStore
	case c.Ready > other.Ready:
		return StepWait
	}
	return StepDecline
}

// Lease is the time for which a worker may act on its claims. The worker renews it by writing its
// heartbeat. Other workers expire a heartbeat only after it has not changed for Length on their
// clocks, and only if it has not been renewed since. The worker counts from the moment it sent the
// last acknowledged renewal. So clocks are never compared; they only have to run at about the same
// speed. The zero value is a lease that has ended. It is not safe for concurrent use.
type Lease struct {
	// Length is for how long others wait; more than 0.
	Length time.Duration

	renewed time.Time
}

// Margin is the end of a lease that is not trusted: room for kills, for messages on their way,
// and for clocks that run differently.
func (l *Lease) Margin() time.Duration { return l.Length / 5 }

// Renew notes that a heartbeat was acknowledged that was sent at the given time.
func (l *Lease) Renew(sent time.Time) {
	if sent.After(l.renewed) {
		l.renewed = sent
	}
}

// End is when trust in the lease ends, unless it is renewed.
func (l *Lease) End() time.Time { return l.renewed.Add(l.Length - l.Margin()) }

// Trusted reports whether no other worker can have expired the heartbeat by now. The monotonic
// clock stops while a machine is suspended, so the wall clock must agree.
func (l *Lease) Trusted(now time.Time) bool {
	passed := max(now.Sub(l.renewed), now.Round(0).Sub(l.renewed.Round(0)))
	return passed < l.Length-l.Margin()
}

// Due reports whether it is time to renew.
func (l *Lease) Due(now time.Time) bool { return now.Sub(l.renewed) >= l.Length/4 }

// Period is how often a worker checks its lease.
func (l *Lease) Period() time.Duration { return max(min(l.Length/12, time.Second), time.Millisecond) }

// Sighting is the last observed state of another worker's heartbeat. The zero value was never
// observed.
type Sighting struct {
	Seq     uint64        // of the record
	Lease   time.Duration // of the worker, as its record says
	Since   time.Time     // when this state was first observed
	Expired bool
}

// Observe notes the record as read at now. Sequences only grow, so a smaller one is a stale read.
func (s *Sighting) Observe(seq uint64, lease time.Duration, expired bool, now time.Time) {
	if seq <= s.Seq && !s.Since.IsZero() {
		return
	}
	*s = Sighting{Seq: seq, Lease: lease, Since: now, Expired: expired}
}

// MayExpire reports whether the record has not changed for a lease. Then a worker may try to expire
// it, on the condition that it still has this sequence. Only that condition proves that it was not
// renewed; MayExpire only says when to try.
func (s *Sighting) MayExpire(now time.Time) bool {
	return !s.Expired && now.Sub(s.Since) >= s.Lease
}

// Releaser is a lane that is being released. Each method retries until it succeeds, and reports
// false when the lane is lost first.
type Releaser interface {
	// RemoveReady deletes the ready message and waits for the acknowledgement. The request must not
	// arrive after the lease, so the lease must be fresh.
	RemoveReady() bool
	// Look reports whether anything is in the mailbox.
	Look() (found, ok bool)
	MakeReady() bool
	RemoveClaim()
}

// Release releases a lane in which nothing runs, so that no wake-up is lost; the package comment of
// the engine has the argument. If the worker is lost in between, its claim is left, and the worker
// that expires its incarnation makes the lane ready.
func Release(l Releaser) {
	if !l.RemoveReady() {
		return
	}
	if found, ok := l.Look(); ok && (!found || l.MakeReady()) {
		l.RemoveClaim()
	}
}

// Pinned reports whether the ready message has to stay, because its own call is not settled.
func (s *Schedule) Pinned() bool {
	return s.hasEntry(func(e *Entry) bool { return e.Inline })
}

// Unresolved reports whether calls wait that a previous holder, which was lost, may have started.
// The next holder learns this only from an interrupted claim. allRead says that the schedule has
// every call that was stored before the claim.
func (s *Schedule) Unresolved(interrupted, allRead bool) bool {
	return interrupted && (!allRead || s.hasEntry(func(e *Entry) bool { return e.MayHaveStarted }))
}

// Starter does the reads and writes for the start of a call. After an error the caller repeats
// [Entry.Begin] from its beginning.
type Starter interface {
	// HasResult looks for the result of the call.
	HasResult(e *Entry) (bool, error)
	// ConfirmNoResult makes sure that the call has no result, after HasResult found none. It fails
	// if there is one.
	ConfirmNoResult(e *Entry) error
	// Refusal is [Entry.Refuse] at its age.
	Refusal(e *Entry) *protocol.Result
	// Mark stores the n-th start mark of the call, once.
	Mark(e *Entry, n int) (Marking, error)
}

// Marking is the outcome of storing a start mark.
type Marking uint8

// The outcomes.
const (
	MarkStored  Marking = iota
	MarkOfOther         // another holder has started the call
	MarkNoRoom          // the stream is full
)

// IsSettled reports whether a call has a result, so that a call which is sent twice, however late,
// runs once. In a cluster a read can be stale, so if the call may have a result, its absence is
// confirmed by a write.
func (e *Entry) IsSettled(s Starter) (bool, error) {
	if e.NoResult && e.IsFirst() {
		return false, nil
	}
	known, err := s.HasResult(e)
	if err != nil || known {
		return known, err
	}
	if e.MayHaveResult() || e.Call.Delivery == protocol.AtMostOnce {
		err = s.ConfirmNoResult(e)
	}
	return false, err
}

// Begin decides whether a call is executed, and counts its start. It returns a result if the call
// ends without being executed, and settled if a result is stored already.
func (e *Entry) Begin(s Starter) (result *protocol.Result, settled bool, err error) {
	if settled, err = e.IsSettled(s); err != nil || settled {
		return nil, settled, err
	}
	if result = s.Refusal(e); result == nil {
		result, err = e.countStart(s)
	}
	return result, false, err
}

// countStart stores a start mark if one is needed. It returns a result when the call must not start
// again.
func (e *Entry) countStart(s Starter) (*protocol.Result, error) {
	for {
		n, result := e.NextStart()
		if n == 0 {
			return result, nil
		}
		marking, err := s.Mark(e, n)
		switch {
		case err != nil:
			return nil, err // the mark may be stored
		case marking == MarkNoRoom && e.Call.Delivery == protocol.AtMostOnce:
			// A call that waited for room would occupy a slot, and other calls make room.
			r := wire.NewResult(e.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeFleetFull,
				"the fleet has no room to note the start of the call; it was not run, try again later"))
			return &r, nil
		}
		e.Starts = n // without room it is counted here only
		if marking != MarkOfOther {
			return nil, nil //nolint:nilnil // it starts
		}
	}
}

// Refuse returns the result of a call that must not start, at the given age since it was accepted;
// nil when it may start. It never reports "no effect" for a call that another holder may have
// started. An expired deadline takes precedence over a cancel.
func (e *Entry) Refuse(age time.Duration) *protocol.Result {
	reject := func(status protocol.Status, code protocol.Code, format string, args ...any) *protocol.Result {
		r := wire.NewResult(e.Call, status, protocol.Errorf(code, format, args...))
		return &r
	}
	switch last := e.Failed; {
	case last != nil && e.Call.Expired(age):
		return last
	case last != nil && e.Cancelled:
		return reject(protocol.StatusCancelled, protocol.CodeCancelled, "the call was cancelled before it was started again; attempt %d ended with %v",
			len(e.Tries), last.Error)
	case last != nil:
		return nil
	case e.unmetError(age) != nil:
		r := wire.NewResult(e.Call, protocol.StatusRejected, e.unmetError(age))
		return &r
	case e.MayHaveRun() && (e.Call.Expired(age) || len(e.Missing) > 0 && age >= e.Call.MaxQueue()):
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call's deadline passed, and it is not started again; a worker that was lost may have started it")
	case e.Call.Expired(age):
		return reject(protocol.StatusRejected, protocol.CodeDeadline,
			"the call's deadline passed while it waited (%s after it was accepted); it was not run",
			age.Round(time.Millisecond))
	case !e.MayHaveRun() && e.Call.QueueTimeout > 0 && age >= e.Call.QueueTimeout.Duration():
		return reject(protocol.StatusRejected, protocol.CodeQueueTimeout,
			"the call waited %s and may wait %s; it was not run",
			age.Round(time.Millisecond), e.Call.QueueTimeout.Duration())
	case e.Cancelled && e.MayHaveRun():
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call was cancelled, and is not started again; a worker that was lost may have started it")
	case e.Cancelled:
		return reject(protocol.StatusCancelled, protocol.CodeCancelled, "the call was cancelled before it started")
	case e.Invalid != nil:
		if coded, ok := errors.AsType[*protocol.Error](e.Invalid); ok {
			return reject(protocol.StatusRejected, coded.Code, "%s", coded.Message)
		}
		return reject(protocol.StatusRejected, codes.InvalidPayload, "the worker cannot read the call: %v", e.Invalid)
	}
	return nil
}

// NextStart returns the number of the start mark to store before the call starts; 0 is none,
// because a first start needs no write. It returns a result instead when the call must not start
// again.
func (e *Entry) NextStart() (mark int, result *protocol.Result) {
	if e.Call.Delivery == protocol.AtMostOnce {
		if e.Marked || e.Starts > 0 {
			return 0, e.outcomeUnknown()
		}
		return 1, nil
	}
	if !e.MayHaveStarted && e.Starts == 0 {
		return 0, nil
	}
	next := max(e.Starts, 1) + 1
	if next > e.Call.Attempts() {
		why := "the worker was lost at each of %d attempts; the call may be what kills it"
		if e.Call.Retry != nil {
			why = "each of %d attempts failed, or its worker was lost"
		}
		r := wire.NewResult(e.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeAttemptsExhausted, why, next-1))
		r.Attempt = next - 1
		return 0, &r
	}
	return next, nil
}

// outcomeUnknown is the result of a call that must not start twice, and that another holder
// started.
func (e *Entry) outcomeUnknown() *protocol.Result {
	r := wire.NewResult(e.Call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
		"the worker that ran the call was lost; it may or may not have had its effects, and is not run again"))
	r.Attempt = 1
	return &r
}

// DueAfter is the age at which a waiting call has to be answered; ok is false if it may wait for
// ever.
func (e *Entry) DueAfter() (age time.Duration, ok bool) {
	if age = e.Call.MaxQueue(); age > 0 && (!e.MayHaveRun() || len(e.Missing) > 0) && e.Failed == nil {
		ok = true
	}
	if left, bounded := e.Call.Left(); bounded {
		if life := max(left, 0); !ok || life < age {
			age, ok = life, true
		}
	}
	return age, ok
}

// Fail notes that an attempt failed which took a time. It reports false when the call is not
// started again: its Retry does not say so, or its deadline comes first at this age. vary changes
// the pause, so that calls that failed together are not started together.
func (e *Entry) Fail(r *protocol.Result, age, took time.Duration, vary func(time.Duration) time.Duration) (pause time.Duration, again bool) {
	attempt := max(e.Starts, 1)
	if e.Call.Retry == nil || !e.Call.Retry.Matches(r.Error) || attempt >= e.Call.Retry.Attempts {
		return 0, false
	}
	pause = max(vary(e.Call.Retry.Pause(attempt, r.Error)), r.Error.RetryAfter.Duration())
	if e.Call.Expired(age + pause) {
		return 0, false
	}
	e.Starts, e.Failed = attempt, r
	e.Tries = append(e.Tries, protocol.Try{Attempt: attempt, Error: r.Error, RunMS: Millis(took), WaitMS: Millis(pause)})
	return pause, true
}

// Millis is d in milliseconds, as results have it.
func Millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
