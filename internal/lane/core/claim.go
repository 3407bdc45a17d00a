package core

import (
	"time"

	"github.com/toolfleet/toolfleet/internal/wire"
)

// Claiming is a claim on its way. It is stored on the condition that the lane's record has the
// sequence Expect; 0 is none. Whoever is refused, or hears no answer, reads the record and asks
// [Claiming.Found]. So each claim is stored once at most.
type Claiming struct {
	*wire.Claim

	Expect uint64
}

// Step is what follows from the claim that was found where another one was to be stored.
type Step uint8

// Every step.
const (
	// StepStore stores the claim on its new condition.
	StepStore Step = iota
	// StepHeld holds the lane: the claim is stored by an earlier try, whose answer was lost.
	StepHeld
	// StepDecline leaves the ready message to the holder, who knows it.
	StepDecline
	// StepWait tries again in a moment: the holder is letting go of the lane.
	StepWait
)

// Decide decides about the claim that is stored with a sequence; the zero claim is none. isExpired
// tells whether the heartbeat of a life is set to expired, which is final.
//
// A holder claims by one ready message and removes that before its claim. So a newer one comes from
// after that removal, and the claim goes in a moment.
func (c *Claiming) Decide(other *wire.Claim, seq uint64, isExpired func(wire.LifeID) bool) Step {
	if seq > 0 && other.Token == c.Token {
		c.Interrupted = other.Interrupted // as it was when it was stored
		return StepHeld
	}
	free := other.Life == "" || other.Life == c.Life // this life holds no lane that it claims, and has started nothing
	expired := !free && isExpired(other.Life)
	switch {
	case free || expired:
		c.Interrupted, c.Expect = other.Interrupted || expired, seq
		return StepStore
	case c.Ready > other.Ready:
		return StepWait
	}
	return StepDecline
}

// Lease is the time for which a worker may act on its claims. It is renewed by a heartbeat, which
// is a write: others expire a heartbeat only after they have seen it stand still for Length, and
// only if it has not been renewed since. The worker counts from when it sent the last renewal that
// was acknowledged, so no clocks are compared; they only have to run about equally fast. The zero
// value is a lease that has ended. It is not safe for concurrent use.
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

// End is when the lease is not trusted any more, unless it is renewed.
func (l *Lease) End() time.Time { return l.renewed.Add(l.Length - l.Margin()) }

// Trusted reports whether nobody else can have expired the heartbeat at now. The monotonic clock
// stands still while a machine is suspended, so the wall clock must agree.
func (l *Lease) Trusted(now time.Time) bool {
	passed := max(now.Sub(l.renewed), now.Round(0).Sub(l.renewed.Round(0)))
	return passed < l.Length-l.Margin()
}

// Due reports whether it is time to renew.
func (l *Lease) Due(now time.Time) bool { return now.Sub(l.renewed) >= l.Length/4 }

// Period is how often a lease is looked at.
func (l *Lease) Period() time.Duration { return max(min(l.Length/12, time.Second), time.Millisecond) }

// Sighting is another worker's heartbeat as it was seen last. The zero value was never seen.
type Sighting struct {
	Seq     uint64        // of the record
	Lease   time.Duration // that the worker has asked for
	Since   time.Time     // when the record was first seen like this
	Expired bool
}

// Observe notes what the record says at now. Sequences only grow, so an older one is an old answer.
func (s *Sighting) Observe(seq uint64, lease time.Duration, expired bool, now time.Time) {
	if seq <= s.Seq && !s.Since.IsZero() {
		return
	}
	*s = Sighting{Seq: seq, Lease: lease, Since: now, Expired: expired}
}

// MayExpire reports whether the record has stood still for a lease: then it may be set to expired,
// on the condition that it still has this sequence. The condition is what proves that the worker
// has not renewed it since; this only says when it is time to try.
func (s *Sighting) MayExpire(now time.Time) bool {
	return !s.Expired && now.Sub(s.Since) >= s.Lease
}

// Releaser is a lane that is let go. Each of its methods tries until it succeeds, and reports false
// when the lane is lost before.
type Releaser interface {
	// RemoveReady removes the ready message, and waits for the answer. It may not arrive late, so
	// the lease is fresh.
	RemoveReady() bool
	// Look reports whether anything is in the mailbox.
	Look() (found, ok bool)
	MakeReady() bool
	RemoveClaim()
}

// Release lets a lane go in which nothing runs, so that no wake-up is lost: the package comment of
// the engine says why. Should the worker be lost in between, the claim is left, and whoever expires
// its life makes the lane ready.
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

// Unresolved reports whether calls wait that a holder before this one, which was lost, may have
// started: only the claim, which is interrupted, says so to the next holder. allRead says that all
// calls are here that were there at the claim.
func (s *Schedule) Unresolved(interrupted, allRead bool) bool {
	return interrupted && (!allRead || s.any(func(e *Entry) bool { return e.MayHaveStarted }))
}
