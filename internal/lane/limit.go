package lane

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
)

// laneLimit is the limit of a held lane. The lane's goroutine applies rules and reserves; calls
// begin in their own goroutines. A lane without a rule costs the comparison of a pointer.
type laneLimit struct {
	rules    *limits.Rules // those that rule is of
	restored bool          // core has what the claim says that was spent
	until    time.Time     // when the rate allows the next start; zero unless a call waits for it

	mu   sync.Mutex
	rule *limits.Rule // nil if the lane has none
	core core.Limit
	wait core.Blocked // why the next call did not start when that was tried last
}

// isLimited reports whether the rule of the lane allows no further start now.
func (l *heldLane) isLimited() bool {
	t := &l.limit
	if !l.applyRules() {
		return false
	}
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	blocked, after := t.core.Blocked(l.slots.used, now)
	if t.wait, t.until = core.NotBlocked, (time.Time{}); l.schedule.Len() > l.slots.used {
		t.wait = blocked
	}
	if t.wait == core.BlockedRate {
		t.until = now.Add(after)
	}
	return blocked != core.NotBlocked
}

// applyRules applies the rules of the fleet if they have changed, and reports whether the lane has
// or had one.
func (l *heldLane) applyRules() bool {
	t, rules := &l.limit, l.holder.limits.Rules()
	if rules == t.rules {
		return t.rules != nil && t.rule != nil
	}
	rule := rules.Of(l.lane)
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rules, t.rule, t.until = rules, rule, (time.Time{}); rule == nil {
		t.core.Change(0, 0, 0, now)
		t.wait = core.NotBlocked
		return false
	}
	rate, burst := rule.PerSecond()
	t.core.Change(rule.Concurrent, rate, burst, now)
	if !t.restored {
		t.restored = true
		t.core.Restore(l.claim.Spent, l.claim.spentAge+now.Sub(l.since), now)
	}
	return true
}

func (t *laneLimit) reserve(e *core.Entry) {
	if t.rule != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.core.Reserve(e)
	}
}

func (t *laneLimit) begin(e *core.Entry, now time.Time) {
	if e.Reserved {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.core.Begin(e, now)
	}
}

func (t *laneLimit) cancel(e *core.Entry) {
	if e.Reserved {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.core.Cancel(e)
	}
}

// spent is what the next holder of the lane has to know of its rate.
func (l *heldLane) spent() float64 {
	if !l.applyRules() {
		return 0
	}
	l.limit.mu.Lock()
	defer l.limit.mu.Unlock()
	return l.limit.core.Spent(time.Now())
}

// describe says what the lane's next call waits for, as far as it is a limit.
func (t *laneLimit) describe() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.wait {
	case core.BlockedConcurrent:
		return fmt.Sprintf("limit %s: concurrent %d", t.rule.Lane, t.rule.Concurrent)
	case core.BlockedRate:
		return fmt.Sprintf("limit %s: rate %s", t.rule.Lane, t.rule.Rate)
	case core.NotBlocked:
	}
	return ""
}

// onLimitsChanged wakes every held lane.
func (h *Holder) onLimitsChanged() {
	for _, l := range h.lanes() {
		l.mail.notify()
	}
}

// spentPeriod is how often records of what was spent are looked through.
const spentPeriod = time.Minute

// removeSpent removes the records that released lanes leave because of their rate, once the rate no
// longer counts what they have. Removing one by its sequence does nothing to a claim that has
// replaced it. It runs until ctx ends.
func (h *Holder) removeSpent(ctx context.Context) {
	for had := false; pause.For(ctx, spentPeriod); {
		rules := h.limits.Rules()
		if !rules.HasRates() && !had {
			continue
		}
		err := h.store.EachClaim(ctx, h.options.Pool, func(c *store.StoredClaim) {
			if c.Life == "" && !c.Interrupted && h.isRegained(rules, c) {
				h.store.DropClaim(c.Epoch)
			}
		})
		had = err != nil || rules.HasRates()
	}
}

// isRegained reports whether a lane that was released with a record has a full bucket by now.
func (h *Holder) isRegained(rules *limits.Rules, c *store.StoredClaim) bool {
	rule := rules.Of(c.Lane)
	if rule == nil {
		return true
	}
	rate, burst := rule.PerSecond()
	now := time.Now()
	bucket := core.Limit{Rate: rate, Burst: burst}
	bucket.Restore(c.Spent, h.clock.Age(c.At), now)
	return bucket.Spent(now) == 0
}
