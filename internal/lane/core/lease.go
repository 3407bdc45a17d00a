package core

import "time"

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

// See notes what the record says at now. Sequences only grow, so an older one is an old answer.
func (s *Sighting) See(seq uint64, lease time.Duration, expired bool, now time.Time) {
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
