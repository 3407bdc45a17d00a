package lane

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// slots limits how many calls of a holder run concurrently. Each waiter waits for a tenant:
// tenants are served by fair queueing, and waiters of one tenant in order of arrival. It is safe
// for concurrent use.
type slots struct {
	size int
	// wake signals that a slot may be free for which no lane waits.
	wake chan struct{}

	mu      sync.Mutex
	used    int
	waiting []*slotWaiter // in order of arrival
	fair    core.Fair[protocol.Tenant]
}

// slotWaiter waits for a slot.
type slotWaiter struct {
	tenant  protocol.Tenant
	granted chan struct{}
}

func (s *slots) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// tryAcquire takes a slot if one is free and no waiter is in line.
func (s *slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used >= s.size || len(s.waiting) > 0 {
		return false
	}
	s.used++
	return true
}

// acquire waits for a slot until the context ends.
func (s *slots) acquire(ctx context.Context, tenant protocol.Tenant) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.mu.Lock()
	if s.used < s.size && len(s.waiting) == 0 {
		s.used++
		s.fair.Grant(tenant)
		s.mu.Unlock()
		return nil
	}
	w := &slotWaiter{tenant: tenant, granted: make(chan struct{})}
	s.waiting = append(s.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.waiting, w); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	} else { // it was granted at this moment
		s.releaseLocked()
	}
	s.signal() // it was counted as waited for
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.releaseLocked()
}

// releaseLocked gives a slot to the waiter whose turn it is.
func (s *slots) releaseLocked() {
	if len(s.waiting) == 0 {
		s.used--
		s.signal()
		return
	}
	first := 0
	for i, w := range s.waiting {
		if s.fair.Before(w.tenant, s.waiting[first].tenant) {
			first = i
		}
	}
	w := s.waiting[first]
	s.waiting = slices.Delete(s.waiting, first, first+1)
	s.fair.Grant(w.tenant)
	close(w.granted)
}

// mayReuse reports whether a lane may start another call with a slot that it has, because no other
// tenant comes before its own. That counts as a grant.
func (s *slots) mayReuse(tenant protocol.Tenant) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	others := false
	for _, w := range s.waiting {
		if w.tenant != tenant {
			if others = true; s.fair.Before(w.tenant, tenant) {
				return false
			}
		}
	}
	if others {
		s.fair.Grant(tenant)
	}
	return true
}

// queued is how many wait for a slot.
func (s *slots) queued() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.waiting)
}

// available is how many slots are neither used nor waited for.
func (s *slots) available() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 {
		return 0
	}
	return max(s.size-s.used, 0)
}

const (
	// quantum is how long a busy lane may keep slots that other lanes wait for.
	quantum = time.Second
	// yieldFor is how long a lane that must stay held then leaves its free slots to others.
	yieldFor = 20 * time.Millisecond
)

// laneSlots is the lane's share of the holder's slots. The lane's goroutine owns it.
type laneSlots struct {
	shared    *slots
	free      int       // slots that no call uses
	unspent   int       // of those, that were granted and not used since
	used      int       // calls that run
	queued    bool      // queues for a slot
	granted   chan bool // the end of the wait: whether a slot was granted
	turnBegan time.Time // when the lane's share of the slots began; before it, they are left to others
}

func newLaneSlots(shared *slots) laneSlots {
	return laneSlots{shared: shared, free: 1, unspent: 1, turnBegan: time.Now(), granted: make(chan bool, 1)}
}

func (s *laneSlots) onGranted(granted bool) {
	s.queued = false
	if granted {
		s.free++
		s.unspent++
	}
}

func (s *laneSlots) isYielding(now time.Time) bool { return now.Before(s.turnBegan) }

// releaseFree gives free slots back to the holder.
func (s *laneSlots) releaseFree() {
	s.unspent = 0
	for ; s.free > 0; s.free-- {
		s.shared.release()
	}
}

// request queues for one slot. Lanes queue, not calls: a lane with many calls gets its turn like
// all others.
func (s *laneSlots) request(ctx context.Context, tenant protocol.Tenant) {
	if s.queued {
		return
	}
	s.queued = true
	go func() { s.granted <- s.shared.acquire(ctx, tenant) == nil }()
}

// close waits for the end of the request, whose context has ended, and gives all slots back.
func (s *laneSlots) close() {
	if s.queued {
		s.onGranted(<-s.granted)
	}
	s.releaseFree()
}

// yields reports whether a busy lane leaves its free slots to other lanes, because it had them for
// a quantum and others wait. If none of its calls runs and the lane need not stay here, it is
// handed over, to the end of the queue. Otherwise it starts nothing for a moment.
func (l *heldLane) yields() bool {
	now := time.Now()
	if l.slots.isYielding(now) {
		return true
	}
	if l.schedule.Len() == 0 || now.Sub(l.slots.turnBegan) < quantum {
		return false
	}
	if !l.othersWait() {
		l.slots.turnBegan = now.Add(-quantum * 3 / 4) // check again soon
		return false
	}
	if l.slots.used == 0 && !l.holder.host.MustHold(l.lane) && !l.unresolved() && l.schedule.RetryAt().IsZero() && len(l.schedule.Awaiting()) == 0 {
		l.stop()
	} else {
		l.slots.turnBegan = now.Add(yieldFor)
	}
	return true
}

// othersWait reports whether a lane waits for a slot, here or at the server. Without an answer it
// assumes so.
func (l *heldLane) othersWait() bool {
	h := l.holder
	if h.slots.available() > 0 {
		return false
	}
	return h.slots.queued() > 0 || h.lanesWait(l.ctx)
}

// backlog is whether lanes wait at the server, as it said a moment ago.
type backlog struct {
	sync.Mutex

	asked time.Time
	waits bool
}

// lanesWait reports whether lanes wait at the server. One question answers all lanes that ask
// within a tenth of a quantum.
func (h *Holder) lanesWait(ctx context.Context) bool {
	b := &h.backlog
	b.Lock()
	defer b.Unlock()
	if time.Since(b.asked) < quantum/10 {
		return b.waits
	}
	consumer, err := h.store.Consumer(ctx, h.options.Pool)
	if b.asked, b.waits = time.Now(), true; err == nil && consumer != nil {
		// Lanes that were delivered and are not held here may be handed back, or held elsewhere.
		waiting := consumer.NumPending + uint64(max(consumer.NumAckPending-h.Held(), 0))
		b.waits = consumer.NumWaiting == 0 && waiting > 0
	}
	return b.waits
}

// laneLimit is the limit of a held lane. The lane's goroutine applies rules and reserves; calls
// begin in their own goroutines. A lane without a rule costs the comparison of a pointer.
type laneLimit struct {
	rules    *limits.Rules // the rules of which rule is one
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
	rate := limits.RateOf(rule)
	t.core.Change(rule.Concurrent, rate.Rate, rate.Burst, now)
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
func (t *laneLimit) describe() (string, report.Wait) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.wait {
	case core.BlockedConcurrent:
		return fmt.Sprintf("limit %s: concurrent %d", t.rule.Lane, t.rule.Concurrent), report.Wait{Reason: report.ReasonLimit, Limit: t.rule.Lane}
	case core.BlockedRate:
		return fmt.Sprintf("limit %s: rate %s", t.rule.Lane, t.rule.Rate), report.Wait{Reason: report.ReasonRate, Limit: t.rule.Lane}
	case core.NotBlocked:
	}
	return "", report.Wait{}
}

// name is the lanes of the rule; "" without one.
func (t *laneLimit) name() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rule == nil {
		return ""
	}
	return t.rule.Lane
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
			if c.Incarnation == "" && !c.Interrupted && h.isRegained(rules, c) {
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
	rate, now := limits.RateOf(rule), time.Now()
	bucket := core.Limit{Rate: rate.Rate, Burst: rate.Burst}
	bucket.Restore(c.Spent, h.clock.Age(c.At), now)
	return bucket.Spent(now) == 0
}
