package core_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// simRule is a rule of all lanes since a time.
type simRule struct {
	since      time.Duration
	concurrent int
	rate       float64
	burst      int
}

// simLimit is the limit of a held lane.
type simLimit struct {
	core    core.Limit
	applied bool
	rule    int
	age     time.Duration // of what the claim says that is spent
	waits   bool          // a call waits for it
}

// applyRule applies the rule that the worker knows; false without limits.
func (l *simLane) applyRule() bool {
	w, t := l.wk.m.w, &l.limit
	if len(w.rules) == 0 {
		return false
	}
	if now, r := l.wk.m.clock(), w.rules[l.wk.rule]; !t.applied || t.rule != l.wk.rule {
		t.core.Change(r.concurrent, r.rate, r.burst, now)
		if !t.applied {
			t.core.Restore(l.claim.Spent, t.age, now)
		}
		t.applied, t.rule = true, l.wk.rule
	}
	return true
}

func (l *simLane) isLimited() bool {
	if !l.applyRule() {
		return false
	}
	running := l.running
	if l.broken("the count of what runs") {
		running = 0
	}
	blocked, _ := l.limit.core.Blocked(running, l.wk.m.clock())
	return blocked == core.BlockedConcurrent || blocked == core.BlockedRate && !l.broken("the rate")
}

func (l *simLane) reserve(e *core.Entry) {
	if !l.applyRule() {
		return
	}
	l.calls[e.Call.ID].reserved = l.wk.m.w.now
	if l.limit.core.Reserve(e); l.broken("the token at the start") {
		l.limit.core.Begin(e, l.wk.m.clock())
	}
}

func (l *simLane) begin(e *core.Entry) { l.limit.core.Begin(e, l.wk.m.clock()) }

func (l *simLane) spent() float64 {
	if !l.applyRule() {
		return 0
	}
	return l.limit.core.Spent(l.wk.m.clock())
}

// knownWithin is how long a change of rules may be unknown to a worker.
const knownWithin = time.Second

// change puts a rule in force.
func (w *world) change(r simRule) {
	r.since = w.now
	w.rules = append(w.rules, r)
	rule := len(w.rules) - 1
	for _, wk := range w.workers {
		w.after(w.between(0, knownWithin), func() { wk.rule = max(wk.rule, rule) })
	}
}

// beginShared is begin for calls that conflict with no other.
func (h *history) beginShared(c *simCall, l *simLane) *attempt {
	rule, n := simRule{concurrent: math.MaxInt}, 1
	if len(h.w.rules) > 0 {
		rule = h.w.rules[len(h.w.rules)-1]
	}
	for _, other := range h.shared {
		switch {
		case other.call.lane != c.lane:
		case other.lane != l:
			other.over = true
		default:
			n++
		}
	}
	if h.w.now > rule.since+knownWithin && n > rule.concurrent {
		h.fault("a limit of what runs at once", c)
	}
	h.stats["most"] = max(h.stats["most"], n)
	h.started[c.lane] = append(h.started[c.lane], simStart{h.w.now, c.reserved})
	a := &attempt{call: c, lane: l}
	h.shared = append(h.shared, a)
	return a
}

// simStart is when a call was executed, and when its start began.
type simStart struct{ at, reserved time.Duration }

// checkRates holds every period between two starts, in which one rule was in force, against it. A
// call whose start began before a change of rules follows the rule from before.
func (h *history) checkRates() {
	for n, r := range h.w.rules {
		end := time.Duration(1 << 62)
		if n+1 < len(h.w.rules) {
			end = h.w.rules[n+1].since
		}
		for _, lane := range sortedKeys(h.started) {
			var at []time.Duration
			for _, start := range h.started[lane] {
				if start.reserved > r.since+knownWithin && start.at < end {
					at = append(at, start.at)
				}
			}
			for i := range at {
				for j := i; j < len(at); j++ {
					const clocks = 1.01 // how differently they run
					if w := at[j] - at[i]; float64(j-i+1) > float64(r.burst)+r.rate*w.Seconds()*clocks+0.01 {
						h.faults = append(h.faults, fmt.Sprintf("a rate: %d starts of %s in %s at %s", j-i+1, lane, w, at[i]))
						return
					}
				}
			}
		}
	}
}

// simulateLimits is a run of calls that limits hold back, while the rules change.
func simulateLimits(seed uint64, cluster bool, broken string) *world {
	w := simulateWith(seed, cluster, broken, func(w *world) {
		rule := func() simRule {
			return simRule{concurrent: 1 + w.rng.IntN(3), rate: 1 + 4*w.rng.Float64(), burst: 1 + w.rng.IntN(4)}
		}
		w.change(rule())
		for _, wk := range w.workers {
			wk.rule = 0
		}
		if seed%2 == 0 {
			for range 2 {
				w.after(w.between(2*time.Second, 8*time.Second), func() { w.change(rule()) })
			}
		}
		for n := range 4 {
			w.newMachine().start(func(t *task) {
				for i := range 10 {
					c := &simCall{id: protocol.CallID(fmt.Sprintf("c%d-%d", n, i)), lane: fmt.Sprint("l", w.rng.IntN(2)), shared: true, once: w.chance(20)}
					w.history.add(c)
					if w.put(t, c, false) && w.chance(10) {
						w.cancel(t, c)
					}
					t.sleep(w.between(0, 400*time.Millisecond))
				}
			})
		}
	})
	if len(w.history.faults) == 0 {
		w.history.checkRates()
	}
	return w
}

// Law: the limits of a lane are never exceeded, over lost workers, releases, failovers and changes
// of the rules, and no call is lost by them.
func TestSimulation_LimitsHold(t *testing.T) {
	t.Parallel()
	n, stats := uint64(200), map[string]int{}
	if raced {
		n = 30
	}
	if *seeds > 0 {
		n = uint64(*seeds)
	}
	from := uint64(1)
	if *seed > 0 {
		from, n = *seed, *seed
	}
	for s := from; s <= n; s++ {
		for _, cluster := range []bool{false, true} {
			w := simulateLimits(s, cluster, "")
			require.Empty(t, w.history.faults, "seed %d, cluster %v", s, cluster)
			for what, count := range w.history.stats {
				stats[what] += count
			}
		}
	}
	t.Log(stats)
}

// Each guard of the limits is needed.
func TestSimulation_FindsEachGuardOfLimitsThatIsMissing(t *testing.T) {
	t.Parallel()
	for _, guard := range []string{
		"the count of what runs", "the rate", "the token at the start", "what a release keeps of the rate", "the empty bucket after a lost holder",
	} {
		t.Run(guard, func(t *testing.T) {
			t.Parallel()
			for s := uint64(1); s <= 1000; s++ {
				if w := simulateLimits(s, s%2 == 0, guard); len(w.history.faults) > 0 {
					t.Logf("seed %d: %s", s, w.history.faults[0])
					return
				}
			}
			t.Error("not found")
		})
	}
}
