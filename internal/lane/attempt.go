package lane

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// attempt takes a call that may start, with a slot, to its settled end. asked is a lookup of its
// result, or nil. It reports false when nothing was settled, because the lane is lost or stopping.
func (l *held) attempt(e *core.Entry, asked *store.Lookup) bool {
	var result *protocol.Result
	known, start := false, starter{l, asked}
	if !l.tries("call cannot be started", func() (err error) {
		result, known, err = e.Begin(&start)
		return err
	}) {
		return false
	}
	if known { // its result is stored already
		l.wasSettled(e)
		return true
	}
	if result != nil && (e.MayHaveRun() || e.Starts > 0) {
		result = cmp.Or(l.holder.host.CommittedResult(l.ctx, l.run(e)), result)
	}
	if result == nil {
		e.Unsettled.Store(true)
		if result = l.unpack(e); result == nil {
			result = l.execute(e)
		}
		if result == nil {
			return false
		}
	}
	return l.settle(e, result)
}

// unpack puts the payload back that was too large for the call's message. It returns a result when
// there is no such payload any more, or it takes too long to get it.
func (l *held) unpack(e *core.Entry) (result *protocol.Result) {
	stored, packed := e.Call.Payload.(protocol.Stored)
	if !packed {
		return nil
	}
	reject := func(format string, args ...any) {
		r := wire.NewResult(e.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeInvalidPayload, format, args...))
		result = &r
	}
	l.tries("payload cannot be read", func() error {
		raw, err := l.holder.store.Blobs.Get(l.ctx, stored)
		switch {
		case errors.Is(err, jetstream.ErrObjectNotFound):
			reject("the payload of the call is not in the fleet's object store any more; it was not run")
			return nil
		case err != nil:
			if result = l.Refusal(e); result != nil { // it may be long until the payload can be read
				return nil
			}
			return err
		}
		full := *e.Call
		if full.Payload, err = wire.DecodePayload(raw); err != nil {
			reject("the stored payload: %v", err)
		}
		e.Full = &full
		return nil
	})
	return result
}

// starter is a lane that starts a call, with a look for its result that is under way, or nil.
type starter struct {
	*held

	asked *store.Lookup
}

// HasResult implements [core.Starter].
func (s *starter) HasResult(e *core.Entry) (bool, error) {
	asked := s.asked
	s.asked = nil // it serves one look
	return s.holder.store.HasResult(s.ctx, e.Call, asked)
}

// ProveNoResult implements [core.Starter].
func (l *held) ProveNoResult(e *core.Entry) error {
	return l.holder.store.SurelyNoResult(l.ctx, e.Call)
}

// Refusal implements [core.Starter].
func (l *held) Refusal(e *core.Entry) *protocol.Result {
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	return e.Refuse(l.holder.clock.Age(e.Accepted))
}

func (l *held) isSettled(e *core.Entry) (bool, error) { return e.IsSettled(&starter{held: l}) }

// Mark implements [core.Starter].
func (l *held) Mark(e *core.Entry, n int) (core.Marking, error) {
	o := l.holder.options
	msg := nats.NewMsg(wire.StartSubject(o.Fleet, o.Pool, l.hash, e.Call.ID, n))
	msg.Data = fmt.Appendf(nil, "%s %d", o.Worker, l.claim.epoch.Load())
	seq, answer, err := l.holder.store.Publish(l.ctx, msg)
	if err == nil && answer == store.Full {
		return core.MarkNoRoom, nil
	}
	if err == nil && answer == store.Occupied {
		var found *message
		switch found, err = l.holder.store.Next(l.ctx, msg.Subject, 0); {
		case err != nil:
		case found == nil:
			err = store.ErrUnderWay
		case !bytes.Equal(found.Data, msg.Data):
			return core.MarkOfOther, nil
		default: // an earlier try, whose answer was lost
			seq = found.Sequence
		}
	}
	if err != nil {
		return core.MarkStored, fmt.Errorf("mark start %d of call %s: %w", n, e.Call.ID, err)
	}
	e.OwnMarks = append(e.OwnMarks, seq)
	return core.MarkStored, nil
}

// run is the attempt of a call that is due.
func (l *held) run(e *core.Entry) *Run {
	age := l.holder.clock.Age(e.Accepted)
	call := e.Call
	if e.Full != nil {
		call = e.Full
	}
	return &Run{
		Call: call, Header: e.Header, Attempt: max(e.Starts, 1), Sequence: e.Seq,
		Queued: age, InLane: min(age, time.Since(l.since)),
		Fence: l.claim.epoch.Load(), LeaseEnd: l.life.leaseEnd, Abandon: func() { l.cancel(ErrDraining) },
	}
}

// execute runs the call; it returns nil when nothing may be committed afterwards.
func (l *held) execute(e *core.Entry) *protocol.Result {
	now, run, ctx := time.Now(), l.run(e), l.ctx
	if life := e.Call.LifeTime(); life > 0 {
		var cancelLife context.CancelFunc
		ctx, cancelLife = context.WithTimeoutCause(ctx, max(life-run.Queued, 0), ErrDeadline)
		defer cancelLife()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.running.mu.Lock()
	e.Stop = stop
	if e.Cancelled { // between the last check and now
		stop(ErrCancelled)
	}
	l.running.calls = append(l.running.calls, ongoing{call: run.Call, attempt: run.Attempt, since: now})
	l.running.mu.Unlock()
	defer func() {
		l.running.mu.Lock()
		defer l.running.mu.Unlock()
		l.running.calls = slices.DeleteFunc(l.running.calls, func(o ongoing) bool { return o.call == run.Call })
	}()

	if !l.alive() { // this process may have slept since the lane was last known to be ours
		return nil
	}
	result, begun := l.entered(ctx, run, e.Call.RunFor())
	if !l.alive() {
		return nil
	}
	result.CallID, result.SessionID = e.Call.ID, e.Call.SessionID
	if result.WorkerID == "" { // else it is of an earlier attempt
		result.WorkerID, result.Attempt = l.holder.options.Worker, run.Attempt
	}
	waited := begun.Sub(now)
	result.QueueMS, result.LaneMS = millis(run.Queued+waited), millis(run.InLane+waited)
	result.RunMS = millis(time.Since(begun))
	return &result
}

// entered executes a call as soon as it may enter, for at most limit, and returns when it began.
func (l *held) entered(ctx context.Context, run *Run, limit time.Duration) (r protocol.Result, begun time.Time) {
	leave, refusal := l.holder.host.Admit(ctx, run)
	begun = time.Now()
	if refusal != nil {
		return *refusal, begun
	}
	defer leave()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, ErrRunTimeout)
	defer cancel()
	return l.holder.host.Execute(ctx, run), begun
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// settle stores the result, trying for as long as the lease is trusted.
func (l *held) settle(e *core.Entry, r *protocol.Result) bool {
	if r.WorkerID == "" {
		r.WorkerID = l.holder.options.Worker
		r.QueueMS = millis(l.holder.clock.Age(e.Accepted))
	}
	r.FinishedAt = time.Now().UTC()
	if !l.tries("result cannot be stored", func() error { return l.holder.store.StoreResult(l.ctx, r) }) {
		return false
	}
	l.holder.host.OnSettled(l.ctx, e.Call, r)
	l.dropPayload(e)
	return true
}

func (l *held) wasSettled(e *core.Entry) {
	e.SettledBefore = true
	l.holder.host.OnAlreadySettled(l.ctx, e.Call)
	l.dropPayload(e)
}

func (l *held) dropPayload(e *core.Entry) {
	if stored, packed := e.Call.Payload.(protocol.Stored); packed {
		l.holder.store.Blobs.Remove(l.ctx, stored)
	}
}

// Before a call starts its result is looked for, so that the same call, sent again after its
// result, does not run again. Where results can be asked for together, that is done for all calls
// in hand when the first of them starts. It may be done early: a result that was stored before the
// call was accepted is found by whoever has read the call, and from then on only the holder stores
// one. The results of calls that a lost holder may have started are looked for at the last moment:
// what that sent last may still arrive.

// ahead is the lookups of results of calls in hand that have not started. One goroutine uses it.
type ahead struct {
	store *store.Store
	asked map[protocol.CallID]*store.Lookup
}

func newAhead(s *store.Store) ahead {
	return ahead{store: s, asked: map[protocol.CallID]*store.Lookup{}}
}

// of returns the lookup of a call that starts, and asks for others together with it. It is nil when
// the call has to be looked for at the last moment.
func (a *ahead) of(e *core.Entry, inHand []*core.Entry) *store.Lookup {
	if !a.serves(e) {
		return nil
	}
	if a.asked[e.Call.ID] == nil {
		var calls []*protocol.Call
		for _, other := range inHand {
			if !other.Running && a.asked[other.Call.ID] == nil && a.serves(other) {
				calls = append(calls, other.Call)
			}
		}
		a.ask(calls...)
	}
	lookup := a.asked[e.Call.ID]
	delete(a.asked, e.Call.ID)
	return lookup
}

// ask asks for the results of calls that were read after the claim was stored.
func (a *ahead) ask(calls ...*protocol.Call) {
	lookup := a.store.LookUpResults(calls...)
	for _, call := range calls {
		a.asked[call.ID] = lookup
	}
}

// serves reports whether the result of a call may be looked for before its turn comes.
func (a *ahead) serves(e *core.Entry) bool {
	return !e.MayHaveResult() && !e.MayHaveRun() && e.Call.Delivery != protocol.AtMostOnce
}

func (a *ahead) drop(e *core.Entry) { delete(a.asked, e.Call.ID) }

// A paused lane has a pause mark in its mailbox. Whoever holds it starts nothing and keeps it as
// long as calls wait there, without a slot: so what ran before goes on, cancelled and expired calls
// are still answered, and the ready message stays where it is. A lane in which nothing waits is let
// go; the mark alone does not make it ready.

// marks is what a lane knows of pauses, and of calls that end without being started. One goroutine
// owns it, but for what is atomic.
type marks struct {
	paused   atomic.Bool // as the mark was read last
	asked    atomic.Bool // somebody has asked about the lane since the marks were read
	read     time.Time   // when those beyond the window were read last
	due      time.Time   // when a call that waits may have to be answered; zero when none does
	refusing bool        // a call was cancelled since cancelled calls were answered last
	// early are calls that were cancelled before they were read: the marks stand behind them, maybe
	// beyond the window.
	early map[protocol.CallID]struct{}
}

func (l *held) cancelRequested() {
	for _, id := range l.mail.takeCancels() {
		l.cancelCall(id)
	}
}

func (l *held) cancelCall(id protocol.CallID) {
	e := l.schedule.Find(id)
	if e == nil {
		if l.marks.early == nil {
			l.marks.early = map[protocol.CallID]struct{}{}
		}
		l.marks.early[id] = struct{}{}
		return
	}
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	e.Cancelled = true
	l.marks.refusing = true
	if e.Stop != nil {
		e.Stop(ErrCancelled)
	}
}

// readMarks finds out whether the lane is paused, and which calls that are not in hand yet are
// cancelled. The marks come with the mailbox, so they are looked for only when they may be beyond
// the window or gone.
func (l *held) readMarks() error {
	beyond := l.isFull() && (time.Since(l.marks.read) >= lookPeriod || !l.mail.knowsCancels())
	if asked := l.marks.asked.Swap(false); !asked && !beyond && !l.marks.paused.Load() {
		return nil
	}
	err := l.readBeyond()
	if err != nil {
		l.marks.asked.Store(true)
		return err
	}
	l.marks.read = time.Now()
	return nil
}

func (l *held) readBeyond() error {
	s, pool := l.holder.store, l.holder.options.Pool
	if l.isFull() && (!s.Consistency().TellsAll() || !l.mail.knowsCancels()) {
		l.mail.listenAnew()
		_, err := s.EachSubject(l.ctx, wire.CancelSubject(s.Fleet, pool, l.hash, "*"), math.MaxInt, func(subject string) {
			l.cancelCall(wire.ParseMailboxSubject(s.Fleet, subject).CallID)
		})
		if err != nil {
			return err
		}
		l.mail.listed = true
	}
	mark, err := s.Next(l.ctx, wire.PauseSubject(s.Fleet, pool, l.hash), 0)
	if err == nil {
		l.marks.paused.Store(mark != nil)
	}
	return err
}

// refuse answers the calls that will not be started in any case, wherever they stand: what has no
// effect need not wait for its turn.
func (l *held) refuse() {
	isDue := !l.marks.due.IsZero() && !time.Now().Before(l.marks.due)
	if !l.marks.refusing && !l.marks.paused.Load() && !isDue {
		return
	}
	l.marks.refusing = false
	defer l.expectAnew()
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if !l.schedule.MayRefuse(e) {
			continue
		}
		result := l.Refusal(e)
		if result == nil {
			continue
		}
		if !l.giveRefusal(e, result) {
			return // the lane is lost
		}
		l.conclude(e)
	}
}

// giveRefusal stores the result of a call that is not started, unless it has one already.
func (l *held) giveRefusal(e *core.Entry, result *protocol.Result) bool {
	known := false
	ok := l.tries("result cannot be looked up", func() (err error) {
		known, err = l.isSettled(e)
		return err
	})
	if ok && known {
		l.wasSettled(e)
		return true
	}
	return ok && l.settle(e, result)
}

// expects notes that a call waits, which may have to be answered before it starts. The time that
// it notes may be too early, never too late.
func (l *held) expects(e *core.Entry) {
	after, bounded := e.DueAfter()
	if !bounded {
		return
	}
	at := time.Now().Add(after - l.holder.clock.Age(e.Accepted))
	if l.marks.due.IsZero() || at.Before(l.marks.due) {
		l.marks.due = at
	}
}

// expectAnew finds out who is the next to be answered. A call whose time is over, and of which it
// is not known yet whether it was started, is looked at again in a moment.
func (l *held) expectAnew() {
	l.marks.due = time.Time{}
	for _, e := range l.schedule.Entries() {
		if !e.Running {
			l.expects(e)
		}
	}
	if now := time.Now(); !l.marks.due.IsZero() && !now.Before(l.marks.due) {
		l.marks.due = now.Add(faultPause)
	}
}
