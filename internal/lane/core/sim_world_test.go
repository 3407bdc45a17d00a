package core_test

import (
	"container/heap"
	"iter"
	"math/rand/v2"
	"time"
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
