package crash

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/pkg/fleet"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/loop"
	"github.com/toolfleet/toolfleet/pkg/protocol"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
)

var (
	every = flag.Bool("every", false, "run every case, not only a sample of them")
	only  = flag.String("operation", "", "run the operations whose names begin so")
)

// sample is how many cases there are for each one that is run without -every.
const sample = 64

// operation is what a process does, and whose writes meet faults.
type operation struct {
	name string
	// set prepares a process: the one that meets the fault, and the one that continues.
	set func(p *process)
	// before is done by a process without faults.
	before func(ctx context.Context, t *testing.T, p *process)
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
	between func(ctx context.Context, t *testing.T, p *process)
	// done checks what a completed operation has left.
	done func(t *testing.T, p *process)
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

// chosen reports whether the case is in the sample.
func (c *crash) chosen() bool {
	hash := fnv.New32()
	_, _ = hash.Write([]byte(c.name()))
	return *every || hash.Sum32()%sample == 0
}

// TestCrash_EveryWrite does each operation once for each of its writes, each fault of that write,
// and each thing that may come after.
func TestCrash_EveryWrite(t *testing.T) {
	w := newWorld(t)
	all, ran, missed := 0, 0, new(atomic.Int64)
	t.Run("cases", func(t *testing.T) {
		for _, o := range operations() {
			if !strings.HasPrefix(o.name, *only) {
				continue
			}
			writes := w.writes(t, o)
			t.Logf("%s: %d writes: %v", o.name, len(writes), writes)
			for _, c := range cases(o, writes) {
				all++
				if !c.chosen() {
					continue
				}
				ran++
				t.Run(c.name(), func(t *testing.T) {
					t.Parallel()
					if !w.play(t, c) {
						missed.Add(1)
					}
				})
			}
		}
	})
	t.Logf("%d of %d cases, of which %d did not come to their write", ran, all, missed.Load())
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
func (w *world) process(t *testing.T, o *operation, of end, session protocol.SessionID) *process {
	t.Helper()
	p := &process{world: w, t: t, end: of, session: session, table: slices.Clone(w.table), model: &script{}, begin: func() {}}
	if o.set != nil {
		o.set(p)
	}
	return p
}

func newSession() protocol.SessionID {
	return protocol.SessionID(fmt.Sprintf("s-%d", sessions.Add(1)))
}

// writes are those of an operation without a fault.
func (w *world) writes(t *testing.T, o *operation) []write {
	t.Helper()
	if o.apart {
		w = w.apart(t)
	}
	return w.first(t, &crash{operation: o, then: resumes}, newSession(), nil)
}

// first does the operation in a process whose write meets the fault of a case, and calls meanwhile
// when it has met it and, if it was not killed by it, still lives.
func (w *world) first(t *testing.T, c *crash, session protocol.SessionID, meanwhile func()) (seen []write) {
	t.Helper()
	o := c.operation
	if o.before != nil {
		o.before(t.Context(), t, w.process(t, o, w.end, session))
	}
	nc, link := w.ConnectVia()
	defer link.Cut()
	defer nc.Close()
	network := newFaulty(link, c.at, c.fault)
	faulty := w.connect(t, nc)
	defer func() { require.NoError(t, faulty.client.Close()) }()
	p := w.process(t, o, faulty, session)
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, errors.New("the operation does not end"))
	defer cancel()
	ctx, kill := context.WithCancelCause(ctx)
	defer kill(nil)
	done := make(chan error, 1)
	if p.begin = network.begin; !o.begins {
		p.begin()
	}
	go func() { done <- o.act(ctx, p) }()
	if meanwhile == nil {
		require.NoError(t, <-done)
		return network.writes()
	}
	reached := false
	select {
	case <-network.reached:
		reached = true
	case err := <-done:
		require.NoError(t, err, "an operation without a fault")
		meanwhile()
		return nil
	}
	switch {
	case c.fault.kills():
		kill(errKilled)
		nc.Close() // it would be made again for ever
		t.Log("the process ended:", <-done)
		meanwhile()
	case c.fault == delayed:
		meanwhile()
		link.Release()
		t.Log("the process ended:", <-done) // fenced, or its write was as good as the other one's
	default:
		t.Log("the process ended:", <-done)
		meanwhile()
	}
	require.NotErrorIs(t, context.Cause(ctx), context.DeadlineExceeded)
	if reached {
		seen = network.writes()
	}
	return seen
}

// play plays one case, and reports whether its write was reached.
func (w *world) play(t *testing.T, c *crash) bool {
	t.Helper()
	if c.operation.apart {
		w = w.apart(t)
		defer w.requireQuiet(t, protocol.SessionPool)
	}
	session := newSession()
	w.mu.Lock()
	w.cases[string(session)] = c.name()
	w.mu.Unlock()
	o := c.operation
	reached := w.first(t, c, session, func() {
		p := w.process(t, o, w.end, session)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		switch c.then {
		case resumes:
			if o.between != nil {
				o.between(ctx, t, p)
			}
			require.NoError(t, o.act(ctx, p), "the continuation")
		case cancels:
			if o.cancel != nil {
				_ = o.cancel(ctx, p) // there may be nothing to be cancelled
			} else {
				ended, end := context.WithCancel(ctx)
				end()
				_ = o.act(ended, p)
			}
			_ = o.act(ctx, p) // what was cancelled may be complete, or is done now
			require.NoError(t, ctx.Err(), "the continuation does not end")
		case denies:
			p.policies = append(p.policies, policy.Policy{Tools: policy.Names{Deny: []string{"*"}}})
			require.NoError(t, o.act(ctx, p), "the continuation under another policy")
		case removes:
			_, err := w.client.Sessions("").Remove(ctx, session, true)
			require.NoError(t, err)
		}
	})
	w.requireLaws(t, c, session)
	return reached != nil
}

// requireLaws checks what holds after every case.
func (w *world) requireLaws(t *testing.T, c *crash, session protocol.SessionID) {
	t.Helper()
	for label, starts := range w.startsOf(session) {
		ids := map[protocol.CallID]bool{}
		for _, s := range starts {
			ids[s.call] = true
			require.False(t, s.once && len(starts) > 1, "%s was started more than once: %v", label, starts)
		}
		require.Len(t, ids, 1, "%s was started by more than one call: %v", label, starts)
	}
	require.Eventually(t, func() bool { return !w.runs(string(session) + "/") }, patience, 5*time.Millisecond, "a call runs that nobody waits for")
	p := w.process(t, c.operation, w.end, session)
	history, err := w.client.Sessions("").Log(t.Context(), session)
	if c.operation.gone || c.then == removes {
		require.ErrorIs(t, err, fleet.ErrNotFound, "the session is there again")
		left, err := w.schedules.Of(t.Context(), session)
		require.NoError(t, err)
		require.Empty(t, left, "this wakes the removed session")
	}
	switch {
	case c.then == removes:
		return
	case c.operation.gone:
		require.NoError(t, c.operation.act(t.Context(), p), "the operation is done again")
		if c.operation.done != nil {
			c.operation.done(t, p)
		}
		return
	}
	require.NoError(t, err)
	defer func() {
		if t.Failed() {
			logEvents(t, history)
		}
	}()
	requireWhole(t, history)
	if c.then != resumes {
		return
	}
	for _, name := range c.operation.once {
		require.Eventually(t, func() bool { return len(w.starts(p.label(name))) > 0 }, patience, 5*time.Millisecond, "%s is never started", name) // a job may be, behind the turn
	}
	again := events(history)
	require.NoError(t, c.operation.act(t.Context(), p), "the operation is done again")
	history, err = w.client.Sessions("").Log(t.Context(), session)
	require.NoError(t, err)
	require.Equal(t, again, events(history), "what is complete is not changed")
	if c.operation.done != nil {
		c.operation.done(t, p)
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
func logEvents(t *testing.T, history loop.History) {
	t.Helper()
	for i := range history.Events {
		e := &history.Events[i]
		text := fmt.Sprint(e.Text, e.Content)
		t.Logf("%s %d.%d.%d %s %s %s %.200s", e.Type, e.Turn, e.Step, e.Index, e.Name, e.CallID, e.Status, text)
	}
}

// requireWhole checks that a journal folds, and that each call has one result.
func requireWhole(t *testing.T, history loop.History) {
	t.Helper()
	_, open, err := history.Turns()
	require.NoError(t, err)
	require.False(t, open, "a turn is open")
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
				require.Equal(t, used[e.Turn], *e.Usage, "what turn %d used is counted once", e.Turn)
			}
		default:
		}
		if e.Usage != nil && (e.Type == loop.EventModelReply || e.Type == loop.EventCompacted || e.Type == loop.EventReplyFailed || e.Type == loop.EventToolResult || e.Type == loop.EventJobEnded) {
			used[e.Turn] = used[e.Turn].Add(*e.Usage)
		}
	}
	for at, n := range replies {
		require.Equal(t, 1, n, "replies of step %v", at)
	}
	for at := range calls {
		require.Equal(t, 1, results[at], "results of call %v", at)
	}
	require.Len(t, results, len(calls))
}

// requireQuiet checks that no lane of a pool has a call any more.
func (w *world) requireQuiet(t *testing.T, pool protocol.Pool) {
	t.Helper()
	begun := time.Now()
	require.Eventually(t, func() bool {
		lanes, err := w.client.Lanes(pool).List(t.Context(), 100)
		if err != nil {
			return false
		}
		for i := range lanes.Lanes {
			if time.Since(begun) > patience/10 {
				t.Logf("%s %+v", w.cases[strings.TrimPrefix(string(lanes.Lanes[i].Lane), "effect/")], lanes.Lanes[i])
			}
		}
		return !slices.ContainsFunc(lanes.Lanes, func(l report.Lane) bool { // one without calls needs a worker to end
			return l.Waiting+l.Delayed+len(l.Running) > 0
		})
	}, patience, 100*time.Millisecond)
}
