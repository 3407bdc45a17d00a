package core_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var (
	seeds = flag.Int("seeds", 0, "simulate so many seeds; 0 is a number that suits a test run")
	seed  = flag.Uint64("seed", 0, "simulate this seed alone; 0 is all")
	table = flag.Bool("table", false, "tell how many seeds and steps it takes to find each guard that is missing")
	fault = flag.String("fault", "", "disturb by this alone: kill, stop, drain, delivery, failover, partition or full; each is one after the other, empty is all together")
)

// disturbances are what goes wrong beside messages that are lost or late.
var disturbances = map[string]func(*world){
	"kill": func(w *world) { w.crash(w.anyWorker()) },
	"stop": func(w *world) {
		w.anyWorker().m.until = w.now + w.between(0, 2*simLease)
		w.history.stats["stop"]++
	},
	"drain": func(w *world) {
		wk := w.anyWorker()
		wk.draining = true
		w.history.stats["drain"]++
		w.after(w.between(0, simLease/4), func() {
			for _, lane := range sortedKeys(wk.held) { // what does not end is killed
				l := wk.held[lane]
				l.killed = true
				l.idle()
			}
		})
	},
	"delivery": func(w *world) { // wrong ones
		for _, m := range w.streams.readies() {
			if w.streams.pending[m.seq] != nil && w.chance(30) {
				w.streams.redeliver(m.seq)
				w.history.stats["delivery"]++
			}
		}
	},
	"failover": func(w *world) { w.streams.failOver(nil) },
	"partition": func(w *world) {
		var cut []*machine
		for _, m := range w.machines {
			if w.chance(40) {
				cut = append(cut, m)
			}
		}
		w.streams.failOver(cut)
	},
	"full": func(w *world) {
		w.streams.full = w.now + w.between(0, simLease)
		w.history.stats["full"]++
	},
}

// simulate runs one seed: callers put calls into few lanes, workers run them, and what can go wrong
// does, until nothing goes wrong any more and all calls have their results. broken is the guard
// that is taken out, and kinds are the disturbances, all of them if there are none.
func simulate(seed uint64, cluster bool, broken string, kinds ...string) *world {
	return simulateWith(seed, cluster, broken, func(w *world) {
		for i := range 3 {
			w.newCaller(i, 8)
		}
	}, kinds...)
}

// simulateWith is simulate with other callers.
func simulateWith(seed uint64, cluster bool, broken string, call func(*world), kinds ...string) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 1)), cluster: cluster, broken: broken, yields: seed%3 == 0}
	w.streams, w.history = newStreams(w), newHistory(w)
	born := 0
	beget := func() *worker {
		born++
		return w.newWorker(fmt.Sprint("w", born), 2)
	}
	w.crash = func(wk *worker) {
		if i := slices.Index(w.workers, wk); !wk.m.dead {
			wk.m.kill()
			w.history.stats["kill"]++
			w.after(w.between(0, time.Second), func() { w.workers[i] = beget() })
		}
	}
	for range 3 {
		w.workers = append(w.workers, beget())
	}
	const troubled = 8 * time.Second
	if len(kinds) == 0 {
		kinds = sortedKeys(disturbances)
	}
	var disturb func()
	disturb = func() {
		if w.now <= troubled {
			disturbances[kinds[w.rng.IntN(len(kinds))]](w)
			w.after(w.between(100*time.Millisecond, 1500*time.Millisecond), disturb)
		}
	}
	w.after(w.between(0, time.Second), disturb)
	call(w)
	fails := func() bool { return len(w.history.faults) > 0 }
	w.runUntil(troubled+2*time.Second, fails)
	w.calm = true
	w.runUntil(w.now+60*time.Second, func() bool { return fails() || w.history.isDone() })
	w.history.check()
	for _, m := range w.machines {
		m.kill()
	}
	return w
}

func (w *world) anyWorker() *worker { return w.workers[w.rng.IntN(len(w.workers))] }

// newCaller puts calls one after the other, and may die in between.
func (w *world) newCaller(n, calls int) {
	m := w.newMachine()
	m.start(func(t *task) {
		for i := range calls {
			c := &simCall{id: protocol.CallID(fmt.Sprintf("c%d-%d", n, i)), lane: fmt.Sprint("l", w.rng.IntN(3)), once: w.chance(30)}
			switch w.rng.IntN(10) {
			case 0:
				c.deadline = w.between(0, 2*simLease)
			case 1:
				c.patience = w.between(time.Millisecond, simLease)
			}
			w.history.add(c)
			accepted := w.put(t, c, false)
			switch {
			case !accepted:
			case w.chance(10): // it asks for it to end
				t.sleep(w.between(0, simLease/2))
				w.cancel(t, c)
			case w.chance(20): // again, by somebody who does not know
				t.sleep(w.between(0, 3*time.Second))
				w.put(t, c, !w.seeing || w.chance(50))
			case w.chance(4):
				w.pause(t, c.lane)
			}
			if w.chance(10) {
				w.history.stats["dead callers"]++
				continue // its next life puts the next call
			}
			t.sleep(w.between(0, time.Second))
		}
	})
}

// put is what a publisher does. It reports whether the call is accepted.
func (w *world) put(t *task, c *simCall, again bool) bool {
	seen := uint64(0)
	if w.seeing && c.accepted == 0 && !again {
		if seen = w.history.seen[c.lane]; seen > 0 && w.mishap(20) { // a copy that is on its way for long
			w.history.stats["late copies"]++
			w.after(w.between(0, 4*time.Second), func() {
				w.streams.put(t.m, callOf(c.lane, c.id), callBody{c, false, seen}, 0, func(stored) {})
			})
		}
	}
	for {
		answer, ok := t.put(readyOf(c.lane), callBody{c, again, seen}, 0)
		if answer.seq > 0 {
			return true
		}
		again = again || !ok
		answer, ok = t.putOnce(callOf(c.lane, c.id), callBody{c, again, seen})
		if ok && !answer.full {
			break
		}
		again = again || !ok
		if answer.full && !again {
			return false // the caller is told
		}
		t.sleep(10 * time.Millisecond)
	}
	makeReady := func(t *task) {
		for {
			if answer, ok := t.put(readyOf(c.lane), nil, 0); ok && !answer.full {
				return
			}
		}
	}
	busy := slices.ContainsFunc(w.history.byLane[c.lane], func(other *simCall) bool {
		return other.accepted > 0 && other.accepted < c.accepted && other.results == 0
	})
	switch {
	case w.mishap(15):
		w.history.stats["missing ready messages"]++ // it dies before it makes the lane ready
	case busy && w.chance(50): // its holder looks into the mailbox after the call before it
		w.history.stats["left out ready messages"]++
		t.m.start(func(t *task) {
			if t.sleep(50 * time.Millisecond); c.results == 0 {
				makeReady(t)
			}
		})
	default:
		makeReady(t)
	}
	return true
}

// cancel asks for a call to end.
func (w *world) cancel(t *task, c *simCall) {
	of := callOf(c.lane, c.id)
	of.name += ".cancel"
	if answer, ok := t.putOnce(of, cancelMark{}); ok && !answer.full && c.cancelled == 0 {
		c.cancelled = w.now
		w.history.stats["cancels"]++
		t.put(readyOf(c.lane), nil, 0)
	}
}

// pause has nothing start in a lane for a while.
func (w *world) pause(t *task, lane string) {
	w.order++
	of := subject{mailbox(lane), fmt.Sprint("pause.", w.order)}
	answer, ok := t.put(of, pauseMark{}, 0)
	if answer.full {
		return
	}
	if ok && !answer.refused { // a leader of before refuses what another one stores
		w.history.paused[lane] = w.now
		w.history.stats["pauses"]++
	}
	t.sleep(w.between(2*patience, simLease)) // one without an answer is stored by then, or never
	delete(w.history.paused, lane)
	seq := sequenceOf(w.streams.cells[of.cell], of.name)
	for gone := seq == 0; !gone; {
		gone = t.remove(of.cell, seq)
	}
	for {
		if answer, ok := t.put(readyOf(lane), nil, 0); ok && !answer.full {
			return
		}
	}
}

// Law: under every interleaving of delays, losses, kills, stops and failovers that a seed makes,
// calls of a lane run in their order, one at a time, each gets one result, and none that must not
// start twice does.
func TestSimulation_LawsHold(t *testing.T) {
	t.Parallel()
	switch *fault {
	case "":
		stats := lawsHold(t)
		for _, what := range []string{
			"starts", "kept", "ran", "not run", "unknown", "cancels", "pauses", "visits", "commits", "dead callers", "cut off",
			"lost with a leader", "no room for a mark", "left out ready messages", "missing ready messages",
		} {
			require.True(t, stats[what] > 0 || *seed > 0, what)
		}
	case "each":
		for _, kind := range sortedKeys(disturbances) {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				lawsHold(t, kind)
			})
		}
	default:
		require.Contains(t, disturbances, *fault, "-fault")
		lawsHold(t, *fault)
	}
}

// lawsHold simulates the seeds, each on one server and on several, and tells what they went
// through.
func lawsHold(t *testing.T, kinds ...string) map[string]int {
	t.Helper()
	n := 200
	if *seeds > 0 {
		n = *seeds
	}
	from, to := uint64(1), uint64(n)
	if *seed > 0 {
		from, to = *seed, *seed
	}
	stats, steps := map[string]int{}, 0
	for s := from; s <= to; s++ {
		for _, cluster := range []bool{false, true} {
			w := simulate(s, cluster, "", kinds...)
			require.Empty(t, w.history.faults, "seed %d, cluster %v", s, cluster)
			steps += w.steps
			for what, count := range w.history.stats {
				stats[what] += count
			}
		}
	}
	t.Logf("%d seeds, %d steps: %v", to-from+1, steps, stats)
	return stats
}

// guards are what the engine does so that the laws hold, and the first seed of one server or of
// several, and of a disturbance if not of all, that breaks a law without it.
var guards = []struct {
	name    string
	cluster bool
	fault   []string
	first   uint64
}{
	{"the condition of a claim", false, nil, 1},
	{"waiting for a lease", false, nil, 1},
	{"the condition of expiry", true, []string{"partition"}, 13},
	{"the lease's end", false, nil, 69},
	{"the end of a life", false, nil, 1142},
	{"interrupted claims", false, nil, 8},
	{"what a release keeps in the claim", false, nil, 8},
	{"the look for a result", false, nil, 1},
	{"the proof that there is no result", true, nil, 558},
	{"the look for the occupant", true, nil, 16},
	{"start marks", false, nil, 9},
	{"the claim until the last look", false, nil, 198},
	{"the last look", false, nil, 12},
	{"the floor of the last look", true, nil, 1447},
	{"the caretaker", false, nil, 69},
	{"the answer to a redelivery", true, nil, 2433},
	{"the second look at claims", true, nil, 5294},
	{"the floor of the caretaker", true, nil, 4422},
	{"the floor", true, nil, 19},
	{"the condition of a commit", false, nil, 1},
	{"the restore", false, nil, 1},
	{"the result in a commit", false, nil, 7},
	{"the commit before the result", false, nil, 6},
}

// Each guard is needed: without it, a seed breaks a law. With -table all seeds are tried, and it is
// told how many it took.
func TestSimulation_FindsEachGuardThatIsMissing(t *testing.T) {
	t.Parallel()
	for _, guard := range guards {
		t.Run(guard.name, func(t *testing.T) {
			t.Parallel()
			first, steps := guard.first, 0
			if *table {
				first = 1
			}
			for s := first; s < first+3000; s++ {
				w := simulate(s, guard.cluster, guard.name, guard.fault...)
				if steps += w.steps; len(w.history.faults) > 0 {
					t.Logf("| %s | %s | %d | %d |", guard.name, law(w.history.faults[0]), s-first+1, steps)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// Law: a call is not looked for if its caller saw a result of its holder before it first sent the
// call. Then no copy of it runs twice, however late it comes and whichever caller sends it again.
// The epoch is needed for that.
func TestSimulation_CallsThatAreNewToTheirHolderRunOnce(t *testing.T) {
	t.Parallel()
	seeing := func(seed uint64, cluster bool, broken string) *world {
		return simulateWith(seed, cluster, broken, func(w *world) {
			w.seeing = true
			for i := range 3 {
				w.newCaller(i, 8)
			}
		})
	}
	n, stats := uint64(60), map[string]int{}
	for s := range simulated(n) {
		for _, cluster := range []bool{false, true} {
			w := seeing(s, cluster, "")
			require.Empty(t, w.history.faults, "seed %d, cluster %v", s, cluster)
			for what, count := range w.history.stats {
				stats[what] += count
			}
		}
	}
	require.True(t, stats["late copies"] > 0 && stats["new to their holder"] > 0 || *seed > 0, stats)
	for _, guard := range []string{"the epoch that a caller saw", "what was settled in this hold"} {
		found := false
		for s := uint64(1); s <= 1000 && !found; s++ {
			w := seeing(s, s%2 == 0, guard)
			if found = len(w.history.faults) > 0; found {
				t.Logf("without %s: seed %d: %s", guard, s, w.history.faults[0])
			}
		}
		require.True(t, found, guard)
	}
}

// Law: a seed replays exactly.
func TestSimulation_ASeedReplaysExactly(t *testing.T) {
	t.Parallel()
	one, two := simulate(7, true, ""), simulate(7, true, "")
	require.Equal(t, one.steps, two.steps)
	require.Equal(t, one.now, two.now)
	require.Equal(t, one.history.stats, two.history.stats)
}
