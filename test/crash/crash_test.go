package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

var (
	every = flag.Bool("every", false, "run every case, not only a sample of them")
	only  = flag.String("operation", "", "run the cases whose names begin so")
)

// sample is how many cases there are for each one that is run without -every.
const sample = 64

// atOnce is how many cases run at a time. Waiting takes them no time of the machine's.
const atOnce = 8

// operation is what a process does, and whose writes meet faults.
type operation struct {
	name string
	// set prepares a process: the one that meets the fault, and the one that continues.
	set func(p *process)
	// before is done by a process without faults.
	before func(ctx context.Context, tb testing.TB, p *process)
	// act is the operation. Done once more it completes what there is of it, or changes nothing.
	act func(ctx context.Context, p *process) error
	// once are the names of the effects that a completed operation has had, once each.
	once []string
	// thens are what may come between the fault and the continuation; nil are all.
	thens []then
	// faults are those of the operation; nil are all.
	faults []fault
	// gone says that there is no session of that name behind the operation.
	gone bool
	// apart has each case run on a fleet of its own.
	apart bool
	// begins says that act calls begin itself, when what it needs is open.
	begins bool
	// cancel ends what the operation has begun; nil is the operation itself, whose context has
	// ended.
	cancel func(ctx context.Context, p *process) error
	// between is done by a process without faults between the fault and a continuation that
	// resumes.
	between func(ctx context.Context, tb testing.TB, p *process)
	// law checks what holds after every case, whatever came between.
	law func(tb testing.TB, c *crash, p *process)
	// done checks what a completed operation has left.
	done func(tb testing.TB, p *process)
}

// then is what comes between the fault and the continuation.
type then string

const (
	resumes then = "resumes" // nothing
	cancels then = "cancels" // the continuation is cancelled before it does anything
	denies  then = "denies"  // a policy denies each tool from now on
	removes then = "removes" // the session is removed by force
)

// crash is one case.
type crash struct {
	operation *operation
	at        write
	fault     fault
	then      then
}

func (c *crash) name() string {
	return strings.ReplaceAll(fmt.Sprintf("%s/%s/%s/%s", c.operation.name, c.at, c.fault, c.then), " ", "_")
}

// chosen reports whether the case is run.
func (c *crash) chosen() bool {
	if *only != "" {
		return strings.HasPrefix(c.name(), *only)
	}
	hash := fnv.New32()
	_, _ = hash.Write([]byte(c.name()))
	return *every || hash.Sum32()%sample == 0
}

// TestCrash_EveryWrite does each operation once for each of its writes, each fault of that write,
// and each thing that may come after. All cases run in one bubble, whose time passes only while all
// of them wait.
//
//nolint:paralleltest // the clock of servers is that of the process
func TestCrash_EveryWrite(t *testing.T) {
	ats.Register() // the servers' clock, which outlives bubbles
	defer ats.Unregister()
	run := &run{at: map[*scene]bool{}}
	watched, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { run.watch(watched, t) })
	begun := time.Now()
	synctest.Test(t, func(t *testing.T) { run.all(t, operations()) })
	stop()
	group.Wait()
	for _, s := range run.scenes {
		t.Run(s.name, func(t *testing.T) {
			if t.Log(s.log.String()); s.failed {
				t.Fail()
			}
		})
	}
	t.Logf("%d of %d cases in %.0f s; %d of them did not come to their write", run.chosen, run.cases, time.Since(begun).Seconds(), run.missed.Load())
}

// run is one run of all cases.
type run struct {
	cases, chosen int
	missed        atomic.Int64

	mu     sync.Mutex
	scenes []*scene
	at     map[*scene]bool // those that run
	ended  int
	failed int // of those that have ended
}

// watch says every minute which cases run, by the machine's own clock.
func (r *run) watch(ctx context.Context, t *testing.T) {
	t.Helper()
	for pause.For(ctx, time.Minute) {
		r.mu.Lock()
		var names []string
		for s := range r.at {
			names = append(names, s.name)
		}
		slices.Sort(names)
		_, _ = fmt.Fprintf(os.Stderr, "%d cases have ended, %d of them failed; these run: %.1000s\n", r.ended, r.failed, strings.Join(names, " "))
		r.mu.Unlock()
	}
}

// each plays scenes with these names, some at a time.
func (r *run) each(t *testing.T, names []string, play func(tb testing.TB, i int)) {
	t.Helper()
	var group sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for i, name := range names {
		places <- struct{}{}
		s := &scene{TB: t, name: name}
		r.mu.Lock()
		r.scenes = append(r.scenes, s)
		r.at[s] = true
		r.mu.Unlock()
		group.Go(func() {
			s.run(func(tb testing.TB) {
				tb.Helper()
				play(tb, i)
			})
			r.mu.Lock()
			delete(r.at, s)
			r.ended++
			if s.failed {
				r.failed++
				_, _ = fmt.Fprintf(os.Stderr, "--- FAILED: %s\n%s\n", s.name, s.log.String())
			}
			r.mu.Unlock()
			<-places
		})
	}
	group.Wait()
}

// all runs the cases in a bubble.
func (r *run) all(t *testing.T, of []*operation) {
	t.Helper()
	w := newWorld(t)
	of = slices.DeleteFunc(of, func(o *operation) bool {
		return !strings.HasPrefix(o.name, *only) && !strings.HasPrefix(*only, o.name+"/")
	})
	names, writes := make([]string, len(of)), make([][]write, len(of))
	for i, o := range of {
		names[i] = o.name
	}
	r.each(t, names, func(tb testing.TB, i int) {
		tb.Helper()
		writes[i] = w.writes(tb, of[i])
		tb.Logf("%d writes: %v", len(writes[i]), writes[i])
	})
	var chosen []*crash
	names = nil
	for i, o := range of {
		for _, c := range cases(o, writes[i]) {
			if r.cases++; c.chosen() {
				chosen, names = append(chosen, c), append(names, c.name())
			}
		}
	}
	r.chosen = len(chosen)
	r.each(t, names, func(tb testing.TB, i int) {
		tb.Helper()
		if !w.play(tb, chosen[i]) {
			r.missed.Add(1)
		}
	})
	w.requireQuiet(t, protocol.DefaultPool)
	w.requireQuiet(t, protocol.SessionPool)
}

func cases(o *operation, writes []write) (all []*crash) {
	faults, thens := o.faults, o.thens
	if faults == nil {
		faults = []fault{lost, unanswered, refused, made, silent, delayed}
	}
	if thens == nil {
		thens = []then{resumes, cancels, denies, removes}
	}
	for _, at := range writes {
		for _, fault := range faults {
			for _, then := range thens {
				all = append(all, &crash{o, at, fault, then})
			}
		}
	}
	return all
}

// sessions counts the sessions of all cases, so that no two have one name.
var sessions atomic.Int64

// process makes a process for a session.
func (w *world) process(tb testing.TB, o *operation, of end, session protocol.SessionID) *process {
	tb.Helper()
	p := &process{world: w, t: tb, end: of, session: session, table: slices.Clone(w.table), model: &script{}, provider: string(session), begin: func() {}}
	if o.set != nil {
		o.set(p)
	}
	return p
}

func newSession() protocol.SessionID {
	return protocol.SessionID(fmt.Sprintf("s-%d", sessions.Add(1)))
}

// writes are those of an operation without a fault.
func (w *world) writes(tb testing.TB, o *operation) []write {
	tb.Helper()
	if o.apart {
		w = w.apart(tb)
	}
	return w.first(tb, &crash{operation: o, then: resumes}, newSession(), nil)
}

// first does the operation in a process whose write meets the fault of a case, and calls meanwhile
// when it has met it and, if it was not killed by it, still lives.
func (w *world) first(tb testing.TB, c *crash, session protocol.SessionID, meanwhile func()) (seen []write) {
	tb.Helper()
	o := c.operation
	if o.before != nil {
		o.before(tb.Context(), tb, w.process(tb, o, w.end, session))
	}
	nc, link := w.In(tb).ConnectVia()
	defer link.Cut()
	defer nc.Close()
	network := newFaulty(link, c.at, c.fault)
	faulty := w.connect(tb, nc)
	defer func() { require.NoError(tb, faulty.client.Close()) }()
	p := w.process(tb, o, faulty, session)
	ctx, cancel := context.WithTimeoutCause(tb.Context(), patience, errors.New("the operation does not end"))
	defer cancel()
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	done := make(chan error, 1)
	if p.begin = network.begin; !o.begins {
		p.begin()
	}
	go func() { done <- o.act(ctx, p) }()
	if meanwhile == nil {
		require.NoError(tb, <-done)
		return network.writes()
	}
	reached := false
	select {
	case <-network.reached:
		reached = true
	case err := <-done:
		require.NoError(tb, err, "an operation without a fault")
		meanwhile()
		return nil
	}
	switch {
	case c.fault.kills():
		time.Sleep(time.Nanosecond) // the time is virtual: it passes when the server has stored what it was sent
		kill(errKilled)
		nc.Close() // it would be made again for ever
		tb.Log("the process ended:", <-done)
		meanwhile()
	case c.fault == delayed:
		meanwhile()
		link.Release()
		tb.Log("the process ended:", <-done) // fenced, or its write was as good as the other one's
	default:
		tb.Log("the process ended:", <-done)
		meanwhile()
	}
	require.NotErrorIs(tb, context.Cause(ctx), context.DeadlineExceeded)
	if reached {
		seen = network.writes()
	}
	return seen
}

// play plays one case, and reports whether its write was reached.
func (w *world) play(tb testing.TB, c *crash) bool {
	tb.Helper()
	if c.operation.apart {
		w = w.apart(tb)
	}
	session := newSession()
	w.mu.Lock()
	w.cases[string(session)] = c.name()
	w.mu.Unlock()
	o := c.operation
	reached := w.first(tb, c, session, func() {
		p := w.process(tb, o, w.end, session)
		ctx, cancel := context.WithTimeout(tb.Context(), patience)
		defer cancel()
		switch c.then {
		case resumes:
			if o.between != nil {
				o.between(ctx, tb, p)
			}
			require.NoError(tb, o.act(ctx, p), "the continuation")
		case cancels:
			if o.cancel != nil {
				_ = o.cancel(ctx, p) // there may be nothing to be cancelled
			} else {
				ended, end := context.WithCancel(ctx)
				end()
				_ = o.act(ended, p)
			}
			time.Sleep(time.Nanosecond) // as above: the server has stored what was left unanswered
			_ = o.act(ctx, p)           // what was cancelled may be complete, or is done now
			require.NoError(tb, ctx.Err(), "the continuation does not end")
		case denies:
			p.policies = append(p.policies, policy.Policy{Tools: policy.Names{Deny: []string{"*"}}})
			require.NoError(tb, o.act(ctx, p), "the continuation under another policy")
		case removes:
			_, err := w.client.Sessions("").Remove(ctx, session, true)
			require.NoError(tb, err)
		}
	})
	w.requireLaws(tb, c, session)
	if o.law != nil {
		o.law(tb, c, w.process(tb, o, w.end, session))
	}
	if o.apart { // a coordinator settles calls that have a result
		require.NoError(tb, w.process(tb, o, w.end, session).coordinate(tb.Context(), func(context.Context) error {
			w.requireQuiet(tb, protocol.SessionPool)
			return nil
		}))
	}
	return reached != nil
}

// requireLaws checks what holds after every case.
func (w *world) requireLaws(tb testing.TB, c *crash, session protocol.SessionID) {
	tb.Helper()
	for label, starts := range w.startsOf(session) {
		ids := map[protocol.CallID]bool{}
		for _, s := range starts {
			ids[s.call] = true
			late := c.fault == delayed && c.then == removes // a copy that comes behind the removal of its result, see the exceptions
			require.False(tb, s.once && len(starts) > 1 && !late, "%s was started more than once: %v", label, starts)
		}
		require.Len(tb, ids, 1, "%s was started by more than one call: %v", label, starts)
	}
	requireSoon(tb, func() bool {
		if c.fault == delayed { // a call that was sent late may run, see the exceptions in docs/guarantees.md
			w.releaseAll(session)
		}
		return !w.runs(string(session) + "/")
	}, "a call runs without a caller")
	p := w.process(tb, c.operation, w.end, session)
	history, err := w.client.Sessions("").Log(tb.Context(), session)
	if c.operation.gone || c.then == removes {
		if err == nil {
			logEvents(tb, history)
		}
		require.ErrorIs(tb, err, fleet.ErrNotFound, "the session is there again")
		left, err := w.schedules.Of(tb.Context(), session)
		require.NoError(tb, err)
		require.Empty(tb, left, "this wakes the removed session")
	}
	switch {
	case c.then == removes:
		return
	case c.operation.gone:
		require.NoError(tb, c.operation.act(tb.Context(), p), "the operation is done again")
		if c.operation.done != nil {
			c.operation.done(tb, p)
		}
		return
	}
	require.NoError(tb, err)
	defer func() {
		if tb.Failed() {
			logEvents(tb, history)
		}
	}()
	requireWhole(tb, history)
	if c.then != resumes {
		return
	}
	for _, name := range c.operation.once {
		requireSoon(tb, func() bool { return len(w.starts(p.label(name))) > 0 }, "%s is never started", name) // a job may be, behind the turn
	}
	again := events(history)
	require.NoError(tb, c.operation.act(tb.Context(), p), "the operation is done again")
	history, err = w.client.Sessions("").Log(tb.Context(), session)
	require.NoError(tb, err)
	require.Equal(tb, again, events(history), "what is complete is not changed")
	if c.operation.done != nil {
		c.operation.done(tb, p)
	}
}

// events counts the events of a session, but for changes, which are done each time they are asked
// for.
func events(history loop.History) (n int) {
	for i := range history.Events {
		if e := history.Events[i].Type; e != loop.EventChangeStarted && e != loop.EventChangeEnded {
			n++
		}
	}
	return n
}

// logEvents shows the journal of a case that failed.
func logEvents(tb testing.TB, history loop.History) {
	tb.Helper()
	for i := range history.Events {
		e := &history.Events[i]
		text := fmt.Sprint(e.Text, e.Content)
		tb.Logf("%s %d.%d.%d %s %s %s %.200s", e.Type, e.Turn, e.Step, e.Index, e.Name, e.CallID, e.Status, text)
	}
}

// requireWhole checks that a journal folds, and that each call has one result.
func requireWhole(tb testing.TB, history loop.History) {
	tb.Helper()
	_, open, err := history.Turns()
	require.NoError(tb, err)
	require.False(tb, open, "a turn is open")
	type place struct{ turn, step, index int }
	calls, results := map[place]protocol.CallID{}, map[place]int{}
	replies, used := map[place]int{}, map[int]protocol.Usage{}
	for i := range history.Events {
		e := &history.Events[i]
		at := place{e.Turn, e.Step, e.Index}
		switch e.Type {
		case loop.EventModelReply:
			replies[at]++
			for index := range e.ToolCalls {
				calls[place{e.Turn, e.Step, index}] = ""
			}
		case loop.EventToolResult:
			results[at]++
		case loop.EventTurnEnded:
			if e.Usage != nil {
				require.Equal(tb, used[e.Turn], *e.Usage, "what turn %d used is counted once", e.Turn)
			}
		default:
		}
		if e.Usage != nil && (e.Type == loop.EventModelReply || e.Type == loop.EventCompacted ||
			e.Type == loop.EventReplyFailed || e.Type == loop.EventToolResult || e.Type == loop.EventJobEnded) {
			used[e.Turn] = used[e.Turn].Add(*e.Usage)
		}
	}
	for at, n := range replies {
		require.Equal(tb, 1, n, "replies of step %v", at)
	}
	for at := range calls {
		require.Equal(tb, 1, results[at], "results of call %v", at)
	}
	require.Len(tb, results, len(calls))
}

// requireQuiet checks that no lane of a pool has a call any more.
func (w *world) requireQuiet(tb testing.TB, pool protocol.Pool) {
	tb.Helper()
	var left []report.Lane // calls are in them
	defer func() {
		for i := range left {
			tb.Logf("%s %+v", w.cases[strings.TrimPrefix(string(left[i].Lane), "effect/")], left[i])
		}
	}()
	requireSoon(tb, func() bool {
		lanes, err := w.client.Lanes(pool).List(tb.Context(), 100)
		if err != nil {
			return false
		}
		left = slices.DeleteFunc(lanes.Lanes, func(l report.Lane) bool { // one without calls needs a worker to end
			return l.Waiting+l.Delayed+len(l.Running) == 0
		})
		return len(left) == 0
	}, "lanes of pool %s have calls", pool)
}
