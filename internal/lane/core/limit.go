package core

import (
	"maps"
	"time"
)

// AllSpent is the spent of a lane whose last holder was lost: what that holder started is unknown,
// so the next one begins with an empty bucket.
const AllSpent = -1

// Limit bounds the starts of a lane's calls. Its one holder counts, so it is exact without any
// message. The zero value has no bound. It is not safe for concurrent use.
//
// Concurrent bounds the calls that run at once. Rate and Burst are a token bucket: a start takes a
// token, Rate tokens are added each second, and the bucket has Burst of them at most. So no period
// of w seconds has more than Burst + Rate*w starts.
//
// A token is reserved when a call may start, and spent at the moment when its execution begins,
// because what comes in between (a lookup, a start mark) takes an unknown time. A reserved token is
// not refilled.
//
// The bucket outlives its holder: a holder that releases a lane stores the spent amount in the
// claim, and the next holder continues with it. After a lost holder the bucket is empty: a crash
// makes the lane slower, never faster.
type Limit struct {
	Concurrent int     // 0 is no bound
	Rate       float64 // starts a second; 0 is no bound
	Burst      int     // at least 1 with a rate

	reserved int
	spent    float64
	at       time.Time // when spent was computed
}

// Restore continues a bucket that a claim has: spent at the given age, or [AllSpent].
func (l *Limit) Restore(spent float64, age time.Duration, now time.Time) {
	if l.at = now; spent < 0 {
		spent, age = float64(l.Burst), 0
	}
	l.spent = max(spent-l.Rate*age.Seconds(), 0)
}

// Change replaces the bounds; what was spent stays spent.
func (l *Limit) Change(concurrent int, rate float64, burst int, now time.Time) {
	l.refill(now)
	l.Concurrent, l.Rate, l.Burst = concurrent, rate, burst
}

func (l *Limit) refill(now time.Time) {
	if passed := now.Sub(l.at); passed > 0 {
		l.spent = max(l.spent-l.Rate*passed.Seconds(), 0)
		l.at = now
	}
}

// Blocked says what stops a further start.
type Blocked uint8

// What a call may wait for.
const (
	NotBlocked        Blocked = iota
	BlockedConcurrent         // a running call of the lane has to end
	BlockedRate               // a token has to be added
)

// Blocked reports what stops a further start while some calls run, and for [BlockedRate] how long
// it takes at least.
func (l *Limit) Blocked(running int, now time.Time) (Blocked, time.Duration) {
	if l.Concurrent > 0 && running >= l.Concurrent {
		return BlockedConcurrent, 0
	}
	if l.Rate <= 0 {
		return NotBlocked, 0
	}
	l.refill(now)
	missing := l.spent + float64(l.reserved+1) - float64(l.Burst)
	if missing <= rounding {
		return NotBlocked, 0
	}
	return BlockedRate, time.Duration(missing / l.Rate * float64(time.Second))
}

// rounding is how much of a token the arithmetic may lose.
const rounding = 1e-6

// Reserve takes a token for a call that may start, which [Limit.Begin] or [Limit.Cancel] ends.
func (l *Limit) Reserve(e *Entry) {
	if l.Rate > 0 {
		e.Reserved = true
		l.reserved++
	}
}

// Begin spends the token of a call: its execution begins now.
func (l *Limit) Begin(e *Entry, now time.Time) {
	if e.Reserved {
		l.Cancel(e)
		l.refill(now)
		l.spent++
	}
}

// Cancel gives the token of a call back, if its execution has not begun.
func (l *Limit) Cancel(e *Entry) {
	if e.Reserved {
		e.Reserved = false
		l.reserved--
	}
}

// Spent is the state of the bucket for the next holder. A call that has not begun counts as begun,
// because it may begin before the claim is stored.
func (l *Limit) Spent(now time.Time) float64 {
	if l.Rate <= 0 {
		return 0
	}
	l.refill(now)
	if spent := l.spent + float64(l.reserved); spent > rounding {
		return spent
	}
	return 0
}

// Fair divides slots between tenants, by start-time fair queueing: each grant takes 1/weight of a
// virtual time, and the waiting tenant with the least goes first. So over any time in which
// tenants wait, their grants are in proportion to their weights, and a tenant that did not wait
// before has no credit. The zero value has the weight 1 for all. It is not safe for concurrent
// use.
type Fair[Tenant comparable] struct {
	// Weight returns the weight of a tenant, more than 0; nil is 1 for all.
	Weight func(Tenant) float64

	now    float64            // the virtual time: the start of the latest grant
	finish map[Tenant]float64 // where each tenant's last grant ends, if that is later
}

// maxTenants bounds the tenants that are remembered. When more of them wait, all are forgotten.
const maxTenants = 10_000

func (f *Fair[T]) start(t T) float64 { return max(f.now, f.finish[t]) }

// Before reports whether a grant to one tenant comes before one to another.
func (f *Fair[T]) Before(one, other T) bool { return f.start(one) < f.start(other) }

// Grant counts a grant to a tenant.
func (f *Fair[T]) Grant(t T) {
	weight := 1.0
	if f.Weight != nil {
		weight = f.Weight(t)
	}
	f.now = f.start(t)
	if f.finish == nil {
		f.finish = map[T]float64{}
	}
	f.finish[t] = f.now + 1/weight
	if len(f.finish) > maxTenants {
		maps.DeleteFunc(f.finish, func(_ T, end float64) bool { return end <= f.now })
	}
	if len(f.finish) > maxTenants {
		clear(f.finish)
	}
}
