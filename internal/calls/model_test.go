package calls_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/toolfleet/toolfleet/internal/calls"
	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/lane/limits"
	"github.com/toolfleet/toolfleet/internal/lane/operator"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/natsio/natsiotest"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

var modelPrograms = flag.Int("senders", 20, "programs of senders, if -rapid.checks is not less")

// Law: whatever becomes of each write of the processes that send calls, a lane is a queue: calls
// start in the order in which each process sent them, none twice, and each has one result for all
// that wait for it, in this process and in later ones. What is said not to be sent never runs.
//
// A program is a sequence of steps of one process after the other. A step sends a call (Go, Submit,
// Call), attaches, cancels, loses the connection, or closes the process. In some steps a write
// fails: it is not made, or made, or late, and the process ends; or it is made or not made, and the
// process gets no answer or an error, and continues. The process after one that has ended sends
// again, under their ids, what that one sent.
func TestModel_RandomProgramsOfSendersAndTheirWrites(t *testing.T) {
	t.Parallel()
	const worlds = 4 // which mostly wait
	for n := range worlds {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			runPrograms(t, (*modelPrograms+worlds-1)/worlds)
		})
	}
}

// runPrograms runs so many programs in a world of their own.
func runPrograms(t *testing.T, most int) {
	t.Helper()
	r := newRig(t, natsio.Topology{})
	r.setLimit(limits.Rule{Tenant: "acme", Rate: "100000/s", Concurrent: 1_000_000}) // more writes
	w := &world{rig: r, starts: map[protocol.CallID]int{}, order: map[protocol.Lane][]protocol.CallID{}, does: map[protocol.CallID]string{}}
	r.hold(w.execute)
	programs, steps, faults := 0, 0, 0
	rapid.Check(t, func(drawn *rapid.T) {
		if programs >= most {
			return
		}
		rt := &judge{drawn, t}
		p := w.program(rt)
		programs++
		for range rapid.IntRange(3, 12).Draw(rt.T, "steps") {
			p.step(rt)
			steps++
		}
		p.finish(rt)
		faults += p.faults
	})
	t.Logf("%d programs, %d steps, %d writes failed", programs, steps, faults)
}

// judge fails a program, and logs why at once: a program whose failure depends on time does not
// fail when it is repeated.
type judge struct {
	*rapid.T

	test *testing.T
}

// Errorf implements [require.TestingT].
func (j *judge) Errorf(format string, args ...any) {
	j.test.Logf(format, args...)
	j.T.Errorf(format, args...)
}

func failf(rt *judge, format string, args ...any) {
	rt.Errorf(format, args...)
	rt.FailNow()
}

// world is what all programs share: a fleet and a worker, which notes what starts.
type world struct {
	*rig

	mu     sync.Mutex
	starts map[protocol.CallID]int
	order  map[protocol.Lane][]protocol.CallID
	does   map[protocol.CallID]string
}

const (
	doesOK     = "ok"
	doesFail   = "fails"
	doesBlocks = "blocks" // until it is cancelled
)

func (w *world) execute(ctx context.Context, run *lane.Run) protocol.Result {
	w.mu.Lock()
	id := run.Call.ID
	w.starts[id]++
	w.order[run.Call.Lane()] = append(w.order[run.Call.Lane()], id)
	does := w.does[id]
	w.mu.Unlock()
	switch does {
	case doesFail:
		return wire.NewResult(run.Call, protocol.StatusFailed, protocol.Errorf(protocol.CodeToolFailed, "as it was to"))
	case doesBlocks:
		<-ctx.Done()
		status, fault, _ := lane.Interrupted(ctx)
		return wire.NewResult(run.Call, status, fault)
	}
	return succeed(run)
}

// program is one run of a random program.
type program struct {
	*world

	session protocol.SessionID
	lanes   []protocol.ResourceKey
	sent    []*sentCall
	now     *process
	late    []*natsiotest.Link // with messages that are on their way
	ended   []*process
	faults  int
}

// sentCall is a call that was sent, and all that is known of it.
type sentCall struct {
	call        protocol.Call
	sender      *process // the first one
	unsent      bool     // it was said not to be sent
	claim       error
	accepted    bool // it was said to be stored
	cancellable bool // it may have been cancelled
	bounded     bool // its context ended soon
	moved       bool // it was sent again, maybe behind later ones
	waiting     []*calls.Handle
	results     []*protocol.Result // what callers got at once
}

// process is a process that sends calls.
type process struct {
	nc   *nats.Conn
	link *natsiotest.Link
	d    *calls.Dispatcher

	mu    sync.Mutex
	match func(subject string) bool
	skip  int
	fate  natsiotest.Fate
	dies  bool
	dead  bool
	fired chan struct{} // nil when no write is to fail
}

func (w *world) program(rt *judge) *program {
	p := &program{world: w, session: protocol.NewSessionID()}
	for i := range 2 {
		p.lanes = append(p.lanes, protocol.ResourceKey(fmt.Sprintf("account/%s-%d", p.session, i)))
	}
	p.begin(rt)
	return p
}

// begin begins a process.
func (p *program) begin(rt *judge) {
	nc, link := p.ConnectVia()
	o := &process{nc: nc, link: link}
	link.OnWrite(o.decide)
	var err error
	o.d, err = calls.New(p.t.Context(), nc, p.Name, &calls.Options{LookAfter: 50 * time.Millisecond, CancelWait: 300 * time.Millisecond, Logger: p.Logger})
	require.NoError(rt, err)
	p.now = o
}

// decide lets writes fail.
func (o *process) decide(subject string) natsiotest.Fate {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.dead:
		return natsiotest.Lost
	case o.fired == nil || strings.HasPrefix(subject, "$JS.") || strings.HasPrefix(subject, "_INBOX.") || !o.match(subject):
		return natsiotest.Passes
	case o.skip > 0:
		o.skip--
		return natsiotest.Passes
	}
	close(o.fired)
	o.fired, o.dead = nil, o.dies
	return o.fate
}

// failure is how a write fails.
type failure struct {
	name string
	fate natsiotest.Fate
	dies bool
}

func failures() []failure {
	return []failure{
		{"none", natsiotest.Passes, false},
		{"not made, and the process ends", natsiotest.Lost, true},
		{"made, and the process ends", natsiotest.Unanswered, true},
		{"made late, and the process ends", natsiotest.Held, true},
		{"not made, without an answer", natsiotest.Lost, false},
		{"made, without an answer", natsiotest.Unanswered, false},
		{"not made, and the answer is an error", natsiotest.Refused, false},
		{"made, and the answer is an error", natsiotest.Made, false},
	}
}

func (p *program) step(rt *judge) {
	kind := rapid.SampledFrom([]string{"go", "go", "go", "submit", "submit", "call", "attach", "cancel", "reconnect", "close"}).Draw(rt.T, "step")
	switch kind {
	case "go", "submit", "call":
		p.send(rt, kind)
	case "attach", "cancel":
		if len(p.sent) == 0 {
			return
		}
		s := rapid.SampledFrom(p.sent).Draw(rt.T, "call")
		f, err := p.now.d.Attach(p.t.Context(), s.ref())
		if errors.Is(err, calls.ErrUnreachable) || errors.Is(err, calls.ErrNoCall) && !s.accepted {
			return // the connection is lost; or it is not sent yet, or will not be
		}
		require.NoError(rt, err)
		require.False(rt, s.unsent, "a call that was not sent is there")
		s.waiting = append(s.waiting, f)
		if kind == "cancel" {
			s.cancellable = true
			if err := f.Cancel(p.t.Context()); !errors.Is(err, calls.ErrUnreachable) {
				require.NoError(rt, err)
			}
		}
	case "reconnect":
		p.now.link.Cut()
		p.now.link.Mend()
	case "close":
		p.now.d.Close()
		p.drain(rt)
	}
}

func (s *sentCall) ref() protocol.CallRef {
	return protocol.CallRef{SessionID: s.call.SessionID, ID: s.call.ID}
}

// send sends a call. One of its writes may fail.
func (p *program) send(rt *judge, how string) {
	call := newCalls(1)[0]
	call.SessionID, call.ID, call.Delivery = p.session, wire.RandomCallID(), protocol.AtMostOnce
	call.Resources = []protocol.Use{{Key: rapid.SampledFrom(p.lanes).Draw(rt.T, "lane"), Access: protocol.Exclusive}}
	call.Tenant = rapid.SampledFrom([]protocol.Tenant{"", "acme"}).Draw(rt.T, "tenant")
	does := rapid.SampledFrom([]string{doesOK, doesOK, doesOK, doesFail, doesBlocks}).Draw(rt.T, "does")
	p.mu.Lock()
	p.does[call.ID] = does
	p.mu.Unlock()
	s := &sentCall{call: call, sender: p.now}
	p.sent = append(p.sent, s)

	ctx := p.t.Context()
	fails := rapid.SampledFrom(failures()).Draw(rt.T, "failure")
	var fired chan struct{}
	if fails.fate != natsiotest.Passes {
		match := func(string) bool { return true }
		if !fails.dies {
			match = func(subject string) bool { return strings.HasSuffix(subject, "."+string(call.ID)) }
		}
		fired = p.now.arm(match, rapid.IntRange(0, 3).Draw(rt.T, "write"), fails)
	}
	if how == "call" || fired != nil && (fails.fate == natsiotest.Lost || fails.fate == natsiotest.Unanswered) && !fails.dies {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(p.t.Context(), 100*time.Millisecond)
		rt.Cleanup(stop)
		s.bounded, s.cancellable = true, how != "submit"
	}
	done := make(chan struct{})
	switch o := p.now; how {
	case "go":
		f := o.d.Go(ctx, &call)
		s.waiting = append(s.waiting, f)
		if fired == nil {
			return // the next call queues behind it
		}
		go func() {
			defer close(done)
			<-f.Done()
		}()
	case "submit":
		go func() {
			defer close(done)
			err := o.d.Submit(ctx, &call)
			s.accepted, s.unsent, s.claim = err == nil, errors.Is(err, lane.ErrNotSent), err
		}()
	case "call":
		go func() {
			defer close(done)
			result, err := o.d.CallWith(ctx, &call, calls.CallOptions{Brief: true})
			if s.unsent, s.claim = errors.Is(err, lane.ErrNotSent), err; result != nil {
				s.results = append(s.results, result)
			}
		}()
	}
	if fired == nil {
		<-done
		return
	}
	select {
	case <-fired:
	case <-done:
	case <-time.After(200 * time.Millisecond): // it makes fewer writes
	}
	if !p.now.disarm() { // the write has failed
		p.faults++
		if fails.dies {
			p.now.kill()
			if <-done; fails.fate == natsiotest.Held {
				p.late = append(p.late, p.now.link)
			}
			p.drain(rt)
			return
		}
	}
	if how != "go" {
		<-done
	}
}

func (o *process) arm(match func(string) bool, skip int, f failure) (fired chan struct{}) {
	fired = make(chan struct{})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.match, o.skip, o.fate, o.dies, o.fired = match, skip, f.fate, f.dies, fired
	return fired
}

// disarm reports whether no write has failed, and none will.
func (o *process) disarm() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	armed := o.fired != nil
	o.fired = nil
	return armed
}

// kill ends a process as a signal does: nothing that it says arrives any more.
func (o *process) kill() {
	o.link.Cut()
	o.nc.Close()
	o.d.Close()
}

// drain begins the process after one that has ended. It sends again what that one does not know to
// have ended.
func (p *program) drain(rt *judge) {
	before := p.now
	p.ended = append(p.ended, before)
	before.nc.Close()
	p.begin(rt)
	for _, s := range p.sent {
		unsent := s.unsent
		for _, f := range s.waiting {
			<-f.Done()
			if _, err := f.Result(); errors.Is(err, lane.ErrNotSent) {
				unsent, s.claim = true, err
			}
		}
		s.waiting = slices.DeleteFunc(s.waiting, func(f *calls.Handle) bool {
			result, _ := f.Result()
			return result == nil
		})
		if s.sender != before || len(s.waiting) > 0 || len(s.results) > 0 {
			continue
		}
		if unsent && rapid.Bool().Draw(rt.T, "leave out") {
			s.unsent = true
			continue
		}
		again := s.call
		again.Again = true
		s.unsent, s.sender, s.moved = false, p.now, s.moved || s.bounded
		s.waiting = append(s.waiting, p.now.d.Go(p.t.Context(), &again))
	}
}

// finish ends what blocks, has late messages arrive, and compares.
func (p *program) finish(rt *judge) {
	for _, link := range p.late {
		require.NoError(rt, link.ReleaseBy(p.NC))
	}
	judge := p.dispatcher
	for _, s := range p.sent {
		if p.does[s.call.ID] != doesBlocks {
			continue
		}
		s.cancellable = true
		err := p.cancelled(judge, s)
		for began := time.Now(); errors.Is(err, calls.ErrUnreachable) && time.Since(began) < patience; {
			err = p.cancelled(judge, s) // the connection is about to be back
		}
		require.NoError(rt, err)
	}
	stored := map[protocol.CallID]*protocol.Result{}
	for _, s := range p.sent {
		for _, f := range s.waiting {
			p.awaits(rt, f)
		}
		f, err := judge.Attach(p.t.Context(), s.ref())
		if err != nil {
			require.ErrorIs(rt, err, calls.ErrNoCall)
			require.False(rt, s.accepted, "a call that was stored is lost")
			continue
		}
		p.awaits(rt, f)
		result, err := f.Result()
		require.NoError(rt, err)
		stored[s.call.ID] = result
	}
	p.requireQuietLanes(rt)
	for _, s := range p.sent {
		p.check(rt, s, stored[s.call.ID])
	}
	for _, key := range p.lanes {
		p.checkOrder(rt, protocol.Lane(key), stored)
	}
	p.now.d.Close()
	p.now.nc.Close()
}

// cancelled cancels a call that may be on its way, if it is there.
func (p *program) cancelled(d *calls.Dispatcher, s *sentCall) error {
	if len(s.waiting) > 0 {
		if f := s.waiting[len(s.waiting)-1]; !isDone(f) {
			return f.Cancel(p.t.Context())
		}
	}
	f, err := d.Attach(p.t.Context(), s.ref())
	if errors.Is(err, calls.ErrNoCall) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Cancel(p.t.Context())
}

func isDone(f *calls.Handle) bool {
	select {
	case <-f.Done():
		return true
	default:
		return false
	}
}

func (p *program) awaits(rt *judge, f *calls.Handle) {
	select {
	case <-f.Done():
	case <-time.After(patience / 2):
		o, err := operator.New(p.t.Context(), p.NC, p.Name)
		require.NoError(rt, err)
		view, err := o.Show(p.t.Context(), f.Call.Pool, f.Call.Lane(), 1)
		failf(rt, "call %s, which %s, has no result: %+v %v", f.Call.ID, p.does[f.Call.ID], view, err)
	}
}

// check compares what all who waited for a call got with what is stored, and with what started.
func (p *program) check(rt *judge, s *sentCall, stored *protocol.Result) {
	p.mu.Lock()
	starts, does := p.starts[s.call.ID], p.does[s.call.ID]
	p.mu.Unlock()
	require.LessOrEqual(rt, starts, 1, "it started twice")
	results := slices.Clone(s.results)
	for _, f := range s.waiting {
		result, err := f.Result()
		if err != nil {
			require.False(rt, errors.Is(err, lane.ErrNotSent) && len(s.waiting) == 1 && stored != nil, "said not to be sent, and it is there: %v", err)
			continue
		}
		results = append(results, result)
	}
	for _, r := range results {
		switch {
		case r.WorkerID != "":
			require.NotNil(rt, stored)
			require.Equal(rt, [4]any{stored.Status, stored.WorkerID, stored.Sequence, stored.Attempt}, [4]any{r.Status, r.WorkerID, r.Sequence, r.Attempt}, "two results")
		case r.Status == protocol.StatusRejected && len(results) == 1:
			require.Nil(rt, stored, "said to be rejected, and it is there: %v", r.Error)
		}
	}
	if s.unsent {
		require.Nil(rt, stored, "said not to be sent, and it is there: %v", s.claim)
	}
	if stored == nil {
		require.Zero(rt, starts, "it ran, and has no result")
		return
	}
	want := map[string]protocol.Status{doesOK: protocol.StatusOK, doesFail: protocol.StatusFailed, doesBlocks: protocol.StatusCancelled}[does]
	if stored.Status != want {
		require.True(rt, s.cancellable && stored.Status == protocol.StatusCancelled, "ended %s, want %s: %v", stored.Status, want, stored.Error)
		return
	}
	if want != protocol.StatusCancelled {
		require.Equal(rt, 1, starts)
	}
}

// checkOrder compares the order in which calls of a lane started with the order in which they were
// accepted, and that with the order in which they were sent.
func (p *program) checkOrder(rt *judge, l protocol.Lane, stored map[protocol.CallID]*protocol.Result) {
	p.mu.Lock()
	ran := slices.Clone(p.order[l])
	p.mu.Unlock()
	accepted := func(id protocol.CallID) uint64 { return stored[id].Sequence }
	require.True(rt, slices.IsSortedFunc(ran, func(a, b protocol.CallID) int { return cmp.Compare(accepted(a), accepted(b)) }), "lane %s: not run as accepted", l)
	last := uint64(0)
	for _, s := range p.sent {
		if s.call.Lane() == l && stored[s.call.ID] != nil && !s.moved {
			require.Greater(rt, accepted(s.call.ID), last, "lane %s: not accepted as sent", l)
			last = accepted(s.call.ID)
		}
	}
}

// requireQuietLanes waits until nothing is left of the calls of the program.
func (p *program) requireQuietLanes(rt *judge) {
	stream, err := p.JS.Stream(p.t.Context(), wire.CallsStream(p.Name))
	require.NoError(rt, err)
	for began := time.Now(); ; {
		left := 0
		for _, key := range p.lanes {
			hash := wire.HashLane(protocol.Lane(key))
			for _, filter := range []string{wire.MailboxFilter(p.Name, protocol.DefaultPool, hash), wire.ReadySubject(p.Name, protocol.DefaultPool, hash)} {
				info, err := stream.Info(p.t.Context(), jetstream.WithSubjectFilter(filter))
				require.NoError(rt, err)
				left += len(info.State.Subjects)
			}
		}
		if left == 0 {
			return
		}
		if time.Since(began) > patience {
			failf(rt, "%d messages are left", left)
		}
		time.Sleep(time.Millisecond)
	}
}
