package core_test

import (
	"container/heap"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// world is a deterministic simulation: processes that run one at a time, a clock that jumps from
// event to event, and a network that delays and loses messages. All chance comes from one seed, so
// a seed that fails replays exactly.
type world struct {
	rng    *rand.Rand
	now    time.Duration
	events eventQueue
	order  int // of events at the same time
	steps  int
	calm   bool // nothing goes wrong any more

	streams  *streams
	history  *history
	machines []*machine
	workers  []*worker
	broken   string // the guard that is taken out; "" is none
	cluster  bool   // several servers: see streams
	yields   bool   // lanes with calls that wait go to the end of the line
	crash    func(*worker)
	rules    []simRule          // of all lanes, the last is in force; none without limits
	weights  map[string]float64 // of tenants
	quotas   map[string]int     // of calls in flight, by tenants
	seeing   bool               // callers say which result they saw, see wire.Seen
}

// event is something that happens at a time.
type event struct {
	at    time.Duration
	order int
	do    func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

// after has something happen later.
func (w *world) after(d time.Duration, do func()) {
	w.order++
	heap.Push(&w.events, event{w.now + d, w.order, do})
}

// runUntil lets things happen until a time, or until done says so.
func (w *world) runUntil(end time.Duration, done func() bool) {
	for len(w.events) > 0 && w.events[0].at <= end && !done() {
		next := heap.Pop(&w.events).(event)
		w.now = next.at
		w.steps++
		next.do()
	}
}

// chance is whether something happens that goes wrong in so many of a hundred times.
func (w *world) chance(percent float64) bool { return w.rng.Float64()*100 < percent }

// mishap is chance as long as anything goes wrong at all.
func (w *world) mishap(percent float64) bool { return !w.calm && w.chance(percent) }

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// machine is what dies and stands still together: a worker or a caller with all that it does at
// once.
type machine struct {
	w     *world
	dead  bool
	until time.Duration // it stands still until then
	cut   time.Duration // it reaches only the server that the others have left, until then
	rate  float64       // of its clock
	tasks []*task
}

func (w *world) newMachine() *machine {
	m := &machine{w: w, rate: 0.995 + 0.01*w.rng.Float64()}
	w.machines = append(w.machines, m)
	return m
}

// clock is the machine's own time.
func (m *machine) clock() time.Time {
	return time.Unix(0, 0).Add(time.Duration(float64(m.w.now) * m.rate))
}

// kill ends the machine at once.
func (m *machine) kill() {
	m.dead = true
	for _, t := range m.tasks {
		t.stop()
	}
	m.tasks = nil
}

// task is one thing that a machine does, as a coroutine: one runs at a time.
type task struct {
	m     *machine
	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	with  any // what it was woken with
	waits int // counts what it has waited for
	ended bool
}

type killed struct{}

// start begins a task.
func (m *machine) start(do func(t *task)) {
	t := &task{m: m}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		defer func() {
			t.ended = true
			if r := recover(); r != nil && r != (killed{}) {
				panic(r)
			}
		}()
		t.yield = yield
		do(t)
	})
	m.tasks = append(m.tasks, t)
	m.w.after(0, func() { t.next() })
}

// wait hands the processor on until somebody wakes the task with what is returned.
func (t *task) wait() any {
	t.waits++
	if !t.yield(struct{}{}) {
		panic(killed{})
	}
	return t.with
}

// wake lets a task that waits go on, unless it has gone on already.
func (t *task) wake(waits int, with any) {
	if t.waits != waits || t.ended || t.m.dead {
		return
	}
	if left := t.m.until - t.m.w.now; left > 0 {
		t.m.w.after(left, func() { t.wake(waits, with) })
		return
	}
	t.with = with
	t.next()
}

func (t *task) sleep(d time.Duration) {
	waits := t.waits + 1
	t.m.w.after(d, func() { t.wake(waits, nil) })
	t.wait()
}

// patience is how long a task waits for an answer.
const patience = 300 * time.Millisecond

// reply is an answer of the servers.
type reply[A any] struct{ answer A }

// request sends something to the servers and waits for the first answer. ok is false when none
// came: it may have been done or not, or be done later.
func request[A any](t *task, late time.Duration, do func(answer func(A))) (answer A, ok bool) {
	w, waits := t.m.w, t.waits+1
	if !w.mishap(2) {
		w.after(w.delay()+late, func() {
			do(func(answer A) {
				if !w.mishap(2) {
					w.after(w.delay(), func() { t.wake(waits, reply[A]{answer}) })
				}
			})
		})
	}
	w.after(patience, func() { t.wake(waits, nil) })
	r, ok := t.wait().(reply[A])
	return r.answer, ok
}

// delay is how long a message is on its way: less than the margin of a lease.
func (w *world) delay() time.Duration {
	if w.mishap(1) {
		return w.between(20*time.Millisecond, 120*time.Millisecond)
	}
	return w.between(0, 5*time.Millisecond)
}

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
	n, stats := uint64(100), map[string]int{}
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
