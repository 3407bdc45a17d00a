package core_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Calls of tenants get tickets instead of ready messages, see package lane: a worker with a free
// slot takes one of the tenant whose turn it is. The calls of a tenant with a quota have marks, by
// which callers count what is in flight.

func markOf(c *simCall) subject { return subject{cell{mark, c.tenant}, string(c.id)} }

// putTicket stores a ticket of a call's lane, unless the lane is ready or has one of the tenant.
func (t *task) putTicket(c *simCall) (made, ok bool) {
	w := t.m.w
	answer, ok := request(t, 0, func(answer func(stored)) {
		if len(w.streams.cells[readyOf(c.lane).cell]) > 0 || w.streams.underWay[readyOf(c.lane)] {
			if t.m.cut <= w.now {
				answer(stored{refused: true})
			}
			return
		}
		w.streams.put(t.m, subject{cell{ticket, c.lane}, c.tenant}, nil, 0, answer)
	})
	return answer.seq > 0, ok && !answer.full
}

// putTenant is what a publisher does with a call of a tenant. It reports false if it dies before.
func (w *world) putTenant(t *task, c *simCall) bool {
	if quota := w.quotas[c.tenant]; quota > 0 {
		for {
			if marks, ok := t.readKind(mark); ok && len(marks) < quota {
				break
			}
			t.sleep(20 * time.Millisecond)
		}
		if w.broken != "the mark before the call" {
			for ok := false; !ok; {
				var answer stored
				answer, ok = t.put(markOf(c), c, 0)
				ok = ok && !answer.full
			}
		}
		if w.mishap(20) {
			w.history.stats["dead callers"]++
			return false
		}
	}
	for again := false; ; again = true {
		if answer, ok := t.putOnce(callOf(c.lane, c.id), callBody{c, again, 0}); ok && !answer.full {
			break
		}
	}
	if w.mishap(15) {
		w.history.stats["missing tickets"]++
		return true
	}
	t.putTicket(c)
	return true
}

// takeTickets serves the tenants in their turns. A turn lasts until a ticket is taken: another
// worker may be faster, and the more often so the larger the share of the tenant is.
func (wk *worker) takeTickets(t *task) {
	turn := ""
	for passed := map[uint64]bool{}; ; {
		t.sleep(wk.m.w.between(time.Millisecond, 5*time.Millisecond))
		life := wk.life
		if life == nil || !wk.trusts(life) || wk.draining || len(wk.held) >= wk.slots {
			continue
		}
		found, ok := t.readKind(ticket)
		var next *message
		for _, m := range found {
			if !passed[m.seq] && (turn == "" || turn == m.name) && (next == nil || wk.fair.Before(m.name, next.name) && !wk.broken("the turn of a tenant")) {
				next = m
			}
		}
		if next == nil || !ok {
			clear(passed) // lanes that were held may have been released
			turn = ""
			continue
		}
		if passed[next.seq] = true; turn == "" {
			wk.fair.Grant(next.name)
		}
		turn = next.name
		if wk.broken("the ticket until the lane is ready") && !t.remove(next.cell, next.seq) {
			continue
		}
		if wk.m.w.mishap(2) { // the worst moment
			wk.m.w.after(0, func() { wk.m.w.crash(wk) })
			t.sleep(time.Second)
		}
		answer, ok := t.putOnce(readyOf(next.of), nil)
		if !ok || answer.seq > 0 || wk.broken("the turn until a ticket is taken") {
			turn = ""
		}
		if !ok || answer.seq == 0 || !t.remove(next.cell, next.seq) || wk.held[next.of] != nil || !wk.trusts(life) {
			continue
		}
		wk.m.w.history.stats["tickets"]++
		sl := wk.newLane(life, &message{seq: answer.seq, subject: readyOf(next.of)}, answer.seq)
		wk.m.start(func(t *task) {
			defer sl.forget()
			sl.hold(t)
		})
	}
}

// replaceTicket is what a caretaker does for a call of a tenant. It reports whether the lane has a
// ticket.
func (wk *worker) replaceTicket(t *task, c *simCall) (has, ok bool) {
	if wk.broken("the replacement of a lost ticket") {
		return true, true
	}
	made, ok := t.putTicket(c)
	if made || !ok {
		return made, ok
	}
	there, ok := t.get(subject{cell{ticket, c.lane}, c.tenant})
	return there != nil, ok
}

// unmark removes the mark of a call that has its result, without an answer.
func (l *simLane) unmark(t *task, c *simCall) {
	w := l.wk.m.w
	if w.quotas[c.tenant] == 0 {
		return
	}
	if found, ok := t.get(markOf(c)); ok && found != nil && !w.mishap(10) {
		w.after(w.delay(), func() { l.wk.s.remove(l.wk.m, found.cell, found.seq, func() {}) })
	}
}

// sweepMarks removes marks whose call is not stored.
func (wk *worker) sweepMarks(t *task) {
	for {
		t.sleep(simLease)
		found, _ := t.readKind(mark)
		for _, m := range found {
			c := m.body.(*simCall)
			if wk.m.w.now-m.at < 5*simLease || wk.broken("the sweep of marks") {
				continue
			}
			if there, _, ok := t.read(mailbox(c.lane)); ok && sequenceOf(there, string(c.id)) == 0 {
				t.remove(m.cell, m.seq)
			}
		}
	}
}

func (w *world) marks() (n int) {
	for of, found := range w.streams.cells {
		if of.kind == mark {
			n += len(found)
		}
	}
	return n
}

// checkQuota holds what is in flight against the quota of a call's tenant.
func (h *history) checkQuota(c *simCall) {
	quota, n := h.w.quotas[c.tenant], 0
	if quota == 0 {
		return
	}
	for _, other := range h.calls {
		if other.tenant == c.tenant && other.accepted > 0 && other.results == 0 {
			n++
		}
	}
	if n > quota {
		h.fault("a quota of calls in flight", c)
	}
}

// beginTenant notes the first start of a call, and holds it against what it waits for.
func (h *history) beginTenant(c *simCall) {
	if c.begun == 0 {
		c.begun = h.w.now
		h.tenants = append(h.tenants, c.tenant)
	}
	for _, other := range c.after {
		if other.results == 0 || other.outcome != ran {
			h.fault("a call starts after those of its after have ended ok", c)
		}
	}
}

// lookAfter looks for the results of calls that others wait for.
func (l *simLane) lookAfter(t *task) {
	for _, e := range l.schedule.Awaiting() {
		for _, ref := range slices.Clone(e.Missing) {
			found, ok := t.get(resultOf(ref.ID))
			if !ok || found == nil || l.broken("the look for the results of after") {
				continue
			}
			status := protocol.StatusOK
			if found.body.(resultBody).outcome != ran && !l.broken("the status of after") {
				status = protocol.StatusFailed
			}
			l.schedule.Ended(ref, status)
		}
	}
}

// simulateTenants is a run in which two tenants with weights 3 to 1 have more calls than slots, a
// third one has a call now and then, and a fourth one has a quota. The server is one: callers count
// exactly there.
func simulateTenants(seed uint64, broken string) *world {
	const judged = 1000 // starts
	var single []*simCall
	w := simulateWith(seed, false, broken, func(w *world) {
		w.weights = map[string]float64{"a": 3, "b": 1, "c": 1, "q": 1}
		w.quotas = map[string]int{"q": 3}
		for _, wk := range w.workers {
			wk.fair.Weight = func(tenant string) float64 { return w.weights[tenant] }
			wk.m.start(wk.takeTickets)
			wk.m.start(wk.sweepMarks)
		}
		add := func(tenant string, n int) *simCall {
			c := &simCall{id: protocol.CallID(fmt.Sprint(tenant, n)), lane: fmt.Sprint(tenant, n), tenant: tenant, shared: true}
			w.history.add(c)
			return c
		}
		flood := map[string]int{"a": 800, "b": 400} // which both still have after the calls that are judged
		for n := range flood["a"] {
			for _, tenant := range sortedKeys(flood) {
				if n < flood[tenant] {
					c := add(tenant, n)
					w.streams.store(callOf(c.lane, c.id), callBody{c, false, 0})
					w.streams.store(subject{cell{ticket, c.lane}, tenant}, nil)
				}
			}
		}
		w.after(11*time.Second, func() { // nothing goes wrong any more
			w.newMachine().start(func(t *task) {
				for n := range 5 {
					c := add("c", n)
					single = append(single, c)
					w.putTenant(t, c)
					t.sleep(time.Second)
				}
			})
		})
		w.newMachine().start(func(t *task) {
			for n := range 12 {
				w.putTenant(t, add("q", n))
			}
		})
	})
	h, got := w.history, map[string]int{}
	for _, tenant := range h.tenants {
		if got["a"]+got["b"] < judged {
			got[tenant]++
		}
	}
	if want := judged / 4; len(h.faults) == 0 && (got["b"] < want-want/10 || got["b"] > want+want/10) {
		h.faults = append(h.faults, fmt.Sprintf("shares: %d of %d starts with weight 1 of 4", got["b"], judged))
	}
	for _, c := range single {
		if waited := c.begun - c.since; len(h.faults) == 0 && waited > 700*time.Millisecond { // the longest call has 450
			h.faults = append(h.faults, fmt.Sprintf("no tenant is delayed by more than a call: %s by %s", c.id, waited))
		}
	}
	return w
}

// simulateAfter is a run of calls that wait for calls of their own and of other lanes, some of
// which are cancelled or expire.
func simulateAfter(seed uint64, cluster bool, broken string) *world {
	return simulateWith(seed, cluster, broken, func(w *world) {
		for n := range 3 {
			w.newMachine().start(func(t *task) {
				for i := range 8 {
					c := &simCall{id: protocol.CallID(fmt.Sprintf("c%d-%d", n, i)), lane: fmt.Sprint("l", w.rng.IntN(3)), shared: w.chance(50), once: w.chance(20)}
					for _, id := range sortedKeys(w.history.calls) {
						if other := w.history.calls[id]; other.accepted > 0 && w.chance(15) {
							c.after = append(c.after, other)
						}
					}
					if w.chance(15) {
						c.patience = w.between(time.Millisecond, simLease)
					}
					w.history.add(c)
					if w.put(t, c, false) && w.chance(10) {
						w.cancel(t, c)
					}
					t.sleep(w.between(0, 500*time.Millisecond))
				}
			})
		}
	})
}

// Law: tenants get slots by their weights within a tenth, none is delayed by another one's calls, a
// quota is never exceeded and given back, and no call is lost by a ticket, over lost workers and
// callers.
func TestSimulation_TenantsGetTheirShares(t *testing.T) {
	t.Parallel()
	n, stats := uint64(2), map[string]int{}
	for s := range simulated(n) {
		w := simulateTenants(s, "")
		require.Empty(t, w.history.faults, "seed %d", s)
		for what, count := range w.history.stats {
			stats[what] += count
		}
	}
	t.Log(stats)
}

// Law: a call starts only when those of its after have ended ok, and every call ends.
func TestSimulation_AfterHolds(t *testing.T) {
	t.Parallel()
	n := uint64(80)
	for s := range simulated(n) {
		for _, cluster := range []bool{false, true} {
			require.Empty(t, simulateAfter(s, cluster, "").history.faults, "seed %d, cluster %v", s, cluster)
		}
	}
}

// simulated are the seeds that flags ask for, or n of them.
func simulated(n uint64) func(func(uint64) bool) {
	from, to := uint64(1), n
	if *seeds > 0 {
		to = uint64(*seeds)
	}
	if *seed > 0 {
		from, to = *seed, *seed
	}
	return func(yield func(uint64) bool) {
		for s := from; s <= to; s++ {
			if !yield(s) {
				return
			}
		}
	}
}

// Each guard of tenants, quotas and waits is needed. Seeds of tenants take long, so the first ones
// that find nothing are left out.
func TestSimulation_FindsEachGuardOfTenantsThatIsMissing(t *testing.T) {
	t.Parallel()
	first := map[string]uint64{"the mark until the result": 2, "the replacement of a lost ticket": 2, "the turn until a ticket is taken": 4}
	of := func(simulate func(uint64, string) *world, guards ...string) {
		for _, guard := range guards {
			t.Run(guard, func(t *testing.T) {
				t.Parallel()
				for s := max(first[guard], 1); s <= 300; s++ {
					if w := simulate(s, guard); len(w.history.faults) > 0 {
						t.Logf("seed %d: %s", s, w.history.faults[0])
						return
					}
				}
				t.Error("not found")
			})
		}
	}
	of(simulateTenants, "the turn of a tenant", "the turn until a ticket is taken", "the ticket until the lane is ready", "the replacement of a lost ticket",
		"the mark before the call", "the mark until the result", "the sweep of marks")
	of(func(s uint64, guard string) *world { return simulateAfter(s, s%2 == 0, guard) },
		"the wait for the calls of after", "the look for the results of after", "the status of after")
}
