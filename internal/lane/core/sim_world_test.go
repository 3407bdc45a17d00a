package core_test

import (
	"container/heap"
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

	streams *streams
	history *history
	broken  string // the guard that is taken out; "" is none
	cluster bool   // readers may be answered from the past
	yields  bool   // lanes with calls that wait go to the end of the line
	crash   func(*worker)
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

func (w *world) chance(percent float64) bool { return w.rng.Float64()*100 < percent }

func (w *world) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)+1))
}

// machine is what dies and stands still together: a worker or a caller with all that it does at
// once.
type machine struct {
	w     *world
	dead  bool
	until time.Duration // it stands still until then
	rate  float64       // of its clock
	tasks []*task
}

func (w *world) newMachine() *machine {
	return &machine{w: w, rate: 0.995 + 0.01*w.rng.Float64()}
}

// clock is the machine's own time.
func (m *machine) clock() time.Time {
	return time.Unix(0, 0).Add(time.Duration(float64(m.w.now) * m.rate))
}

// kill ends the machine at once.
func (m *machine) kill() {
	m.dead = true
	for _, t := range m.tasks {
		if !t.ended && !t.runs {
			t.step(nil)
		}
	}
}

// task is one thing that a machine does. Tasks hand the processor to each other: one runs at a
// time.
type task struct {
	m       *machine
	resume  chan any
	yielded chan struct{}
	ended   bool
	runs    bool
	waits   int // counts what it has waited for
}

type killed struct{}

// start begins a task.
func (m *machine) start(do func(t *task)) {
	t := &task{m: m, resume: make(chan any), yielded: make(chan struct{})}
	m.tasks = append(m.tasks, t)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				if _, ok := r.(killed); !ok {
					panic(r)
				}
			}
			t.ended = true
			t.yielded <- struct{}{}
		}()
		if <-t.resume; m.dead {
			panic(killed{})
		}
		do(t)
	}()
	m.w.after(0, func() { t.step(nil) })
}

// step lets a task go on.
func (t *task) step(with any) {
	if t.ended {
		return
	}
	t.runs = true
	t.resume <- with
	<-t.yielded
	t.runs = false
}

// wait hands the processor on until somebody wakes the task with what is returned.
func (t *task) wait() any {
	t.waits++
	t.yielded <- struct{}{}
	with := <-t.resume
	if t.m.dead {
		panic(killed{})
	}
	return with
}

// wake lets a task that waits go on, unless it has gone on already.
func (t *task) wake(waits int, with any) {
	if t.waits != waits || t.ended {
		return
	}
	if left := t.m.until - t.m.w.now; left > 0 && !t.m.dead {
		t.m.w.after(left, func() { t.wake(waits, with) })
		return
	}
	t.step(with)
}

func (t *task) sleep(d time.Duration) {
	waits := t.waits + 1
	t.m.w.after(d, func() { t.wake(waits, nil) })
	t.wait()
}

// patience is how long a task waits for an answer.
const patience = 300 * time.Millisecond

// ask has the server do something and returns its answer; ok is false when none came: then it may
// have been done or not, or be done later.
func (t *task) ask(do func() any) (answer any, ok bool) {
	w, waits := t.m.w, t.waits+1
	type reply struct{ answer any }
	if w.calm || !w.chance(2) {
		w.after(w.delay(), func() {
			answer := do()
			if w.calm || !w.chance(2) {
				w.after(w.delay(), func() { t.wake(waits, reply{answer}) })
			}
		})
	}
	w.after(patience, func() { t.wake(waits, nil) })
	if r, ok := t.wait().(reply); ok {
		return r.answer, true
	}
	return nil, false
}

// askLate is ask for what may arrive however late.
func (t *task) askLate(do func() any) (answer any, ok bool) {
	w := t.m.w
	if w.calm || !w.chance(3) {
		return t.ask(do)
	}
	w.after(w.between(0, 3*simLease), func() { do() })
	t.sleep(patience)
	return nil, false
}

// delay is how long a message is on its way: less than the margin of a lease.
func (w *world) delay() time.Duration {
	if !w.calm && w.chance(1) {
		return w.between(20*time.Millisecond, 120*time.Millisecond)
	}
	return w.between(0, 5*time.Millisecond)
}
