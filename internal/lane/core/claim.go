package core

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
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
func (c *Claiming) Decide(other *wire.Claim, seq uint64, isExpired func(wire.LifeID) bool) Step {
	if seq > 0 && other.Token == c.Token {
		c.Interrupted, c.Spent = other.Interrupted, other.Spent // as they were when it was stored
		return StepHeld
	}
	free := other.Life == "" || other.Life == c.Life // this incarnation does not hold the lane, so it has started nothing
	expired := !free && isExpired(other.Life)
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
	return s.any(func(e *Entry) bool { return e.Inline })
}

// Unresolved reports whether calls wait that a previous holder, which was lost, may have started.
// The next holder learns this only from an interrupted claim. allRead says that the schedule has
// every call that was stored before the claim.
func (s *Schedule) Unresolved(interrupted, allRead bool) bool {
	return interrupted && (!allRead || s.any(func(e *Entry) bool { return e.MayHaveStarted }))
}
