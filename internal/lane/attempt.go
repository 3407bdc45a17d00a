package lane

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/internal/wire/codes"
	"github.com/toolfleet/toolfleet/pkg/fleet/report"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// offerPeriod is after how long a lane that was handed back is delivered again.
const offerPeriod = time.Second

// Requirements is the requirements of a call. The workers of a pool may differ in their handlers,
// the isolation level of their sandboxes, and the models of their turns. A holder that meets a call
// which it cannot run starts the other calls that may start, and hands the lane back; that counts
// as no start. It publishes the requirements on core NATS, and a holder that meets them claims the
// lane at once. If no worker does, the consumer delivers the lane again after offerPeriod.
type Requirements = report.Need

// RequirementsOf returns the requirements of a call.
func RequirementsOf(c *protocol.Call) Requirements {
	n := Requirements{Level: c.MinLevel}
	switch p := c.Payload.(type) {
	case nil:
	case protocol.UnknownPayload:
		n.Kind, n.Handler = p.Name, true
	case wire.DialogOpen:
		n.Kind, n.Handler = p.Tool, true
	case wire.Stored:
		_, err := wire.ParseUserKind(string(p.Of))
		n.Kind, n.Handler, n.Model = p.Of, err == nil, p.Model
	case wire.TurnRun:
		n.Kind, n.Model = wire.KindOf(p), p.Model
	default:
		n.Kind = wire.KindOf(p)
	}
	return n
}

// canRun reports whether a call is run here. Any worker answers a call that cannot be decoded or
// must not start again, and a lane that must stay here is not handed back.
func (l *heldLane) canRun(e *core.Entry) bool {
	if _, answer := e.NextStart(); e.Invalid != nil || answer != nil {
		return true
	}
	return l.holder.host.CanRun(RequirementsOf(e.Call)) || l.holder.host.MustHold(l.lane)
}

// skipSettled finishes a call that cannot run here but has its result already, and reports whether
// it had. Otherwise it notes the requirements of the call.
func (l *heldLane) skipSettled(e *core.Entry) bool {
	known, err := l.isSettled(e)
	if err == nil && known {
		l.onAlreadySettled(e)
		l.finishEntry(e)
		return true
	}
	need := RequirementsOf(e.Call)
	l.unmet = &need
	return false
}

func (l *heldLane) offer(ctx context.Context) error {
	s := l.holder.store
	body, err := json.Marshal(l.unmet)
	if err != nil {
		return fmt.Errorf("offer lane: %w", err)
	}
	err = s.RedeliverAfter(ctx, l.holder.options.Pool, offerPeriod, l.ready.seq)
	_ = s.NC.Publish(wire.AskSubject(s.Fleet, l.holder.options.Pool, l.hash), body) // without a connection it is delivered later
	return err
}

// onOffer claims a lane that another worker cannot go on with, or that should be here, if a slot is
// free.
func (h *Holder) onOffer(ctx context.Context, hash wire.LaneHash, msg *nats.Msg) {
	var need Requirements
	err := json.Unmarshal(msg.Data, &need)
	if err != nil || need.Disk != "" && need.Disk != h.options.Disk || need.Disk == "" && !h.host.CanRun(need) {
		return
	}
	if !h.slots.tryAcquire() {
		respondRefused(need, msg)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, store.ShortTimeout)
	defer cancel()
	ready, err := h.storedReady(ctx, hash)
	h.mu.Lock()
	living := h.incarnation != nil
	h.mu.Unlock()
	if err != nil || ready == nil || !living {
		h.slots.release()
		respondRefused(need, msg)
		return
	}
	ready.asked = msg.Reply
	h.beginHold(ready) //nolint:contextcheck // the lane has its own
}

// preferFor is how long a lane waits for the preferred worker.
const preferFor = 75 * time.Millisecond

// Answers of a preferred worker.
const (
	answerClaimed = "taken" // the lane is claimed
	answerRefused = "refused"
)

// leavesToPreferred reports whether the preferred worker has claimed a lane. That worker has what
// the lane needs, such as its workspace. If it has not claimed the lane after preferFor, because it
// is busy or lost, this worker claims it.
func (h *Holder) leavesToPreferred(l *heldLane) bool {
	if l.ready.ack == "" || l.ready.deliveries > 1 || !h.peers.hasOthers(h.options.Worker) {
		return false
	}
	ctx, cancel := context.WithTimeout(l.ctx, preferFor)
	defer cancel()
	preferred := h.host.PreferredDisk(ctx, l.lane)
	if preferred == "" || preferred == h.options.Disk || !h.peers.hasDisk(preferred) {
		return false
	}
	body, err := json.Marshal(Requirements{Disk: preferred})
	if err != nil {
		return false
	}
	answer, err := h.store.NC.RequestWithContext(ctx, wire.AskSubject(h.store.Fleet, h.options.Pool, l.hash), body)
	return err == nil && string(answer.Data) == answerClaimed
}

// notifyClaimed reports to the worker that offered a lane that it is claimed.
func (h *Holder) notifyClaimed(r *readyMessage) {
	if r.asked != "" {
		_ = h.store.NC.Publish(r.asked, []byte(answerClaimed)) // if it is lost, the worker reads the claim
	}
}

// respondRefused reports to the worker that offered a lane that it is not claimed.
func respondRefused(n Requirements, msg *nats.Msg) {
	if n.Disk != "" {
		_ = msg.Respond([]byte(answerRefused)) // if it is lost, the worker waits for preferFor
	}
}

// attempt runs a call that may start, with a slot, until its result is stored. lookup is an early
// lookup of its result, or nil. It reports false when no result was stored, because the lane is
// lost or the holder drains.
func (l *heldLane) attempt(e *core.Entry, lookup *store.Lookup) bool {
	e.RetryAt = time.Time{}
	var result *protocol.Result
	known, start := false, starter{l, lookup}
	if !l.retry("call cannot be started", func() (err error) {
		result, known, err = e.Begin(&start)
		return err
	}) {
		return false
	}
	if known {
		l.onAlreadySettled(e)
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
		if result == nil || !e.RetryAt.IsZero() {
			return false
		}
	}
	return l.settle(e, result)
}

// starter does the reads and writes for the start of a call.
type starter struct {
	*heldLane

	lookup *store.Lookup
}

// HasResult implements [core.Starter].
func (s *starter) HasResult(e *core.Entry) (bool, error) {
	lookup := s.lookup
	s.lookup = nil // it serves one read
	return s.holder.store.HasResult(s.ctx, e.Call, lookup)
}

// ConfirmNoResult implements [core.Starter].
func (l *heldLane) ConfirmNoResult(e *core.Entry) error {
	return l.holder.store.Consistency().ConfirmNoResult(l.ctx, e.Call)
}

// Refusal implements [core.Starter].
func (l *heldLane) Refusal(e *core.Entry) *protocol.Result {
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	return e.Refuse(l.holder.clock.Age(e.Accepted))
}

func (l *heldLane) isSettled(e *core.Entry) (bool, error) { return e.IsSettled(&starter{heldLane: l}) }

// Mark implements [core.Starter].
func (l *heldLane) Mark(e *core.Entry, n int) (core.Marking, error) {
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
			err = store.ErrPending
		case !bytes.Equal(found.Data, msg.Data):
			return core.MarkOfOther, nil
		default: // our own mark; the answer to an earlier try was lost
			seq = found.Sequence
		}
	}
	if err != nil {
		return core.MarkStored, fmt.Errorf("mark start %d of call %s: %w", n, e.Call.ID, err)
	}
	e.OwnMarks = append(e.OwnMarks, seq)
	return core.MarkStored, nil
}

// unpack loads a payload that was too large for the call's message. It returns a result if the
// payload is gone, or if the call's time ends before it is loaded.
func (l *heldLane) unpack(e *core.Entry) (result *protocol.Result) {
	stored, packed := e.Call.Payload.(wire.Stored)
	if !packed {
		return nil
	}
	reject := func(format string, args ...any) {
		r := wire.NewResult(e.Call, protocol.StatusRejected, protocol.Errorf(codes.InvalidPayload, format, args...))
		result = &r
	}
	l.retry("payload cannot be read", func() error {
		raw, err := l.holder.store.Blobs.Get(l.ctx, stored)
		switch {
		case errors.Is(err, jetstream.ErrObjectNotFound):
			reject("the payload of the call is not in the fleet's object store any more; it was not run")
			return nil
		case err != nil:
			if result = l.Refusal(e); result != nil { // the call expired or was cancelled meanwhile
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

// run describes the next attempt of a call.
func (l *heldLane) run(e *core.Entry) *Run {
	age := l.holder.clock.Age(e.Accepted)
	call := e.Call
	if e.Full != nil {
		call = e.Full
	}
	return &Run{
		Call: call, Header: e.Header, Attempt: max(e.Starts, 1), Sequence: e.Seq, Signer: e.Signer,
		Queued: age, InLane: min(age, time.Since(l.since)),
		Fence: l.claim.epoch.Load(), LeaseEnd: l.incarnation.heldUntil, Abandon: func() { l.cancel(ErrDraining) },
	}
}

// execute runs the call; it returns nil when the lane is lost and no result may be stored.
func (l *heldLane) execute(e *core.Entry) *protocol.Result {
	now, run, ctx := time.Now(), l.run(e), l.ctx
	waits := l.waitsOf(e, run, now)
	run.WillRetry = l.willRetry(e, now)
	if life := e.Call.LifeTime(); life > 0 {
		var cancelLife context.CancelFunc
		ctx, cancelLife = context.WithTimeoutCause(ctx, max(life-run.Queued, 0), ErrDeadline)
		defer cancelLife()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.running.mu.Lock()
	e.Stop = stop
	if e.Cancelled { // since the last check
		stop(ErrCancelled)
	}
	l.running.calls = append(l.running.calls, ongoing{call: run.Call, attempt: run.Attempt, since: now, waits: waits})
	l.running.mu.Unlock()
	defer func() {
		l.running.mu.Lock()
		defer l.running.mu.Unlock()
		l.running.calls = slices.DeleteFunc(l.running.calls, func(o ongoing) bool { return o.call == run.Call })
	}()

	result, begun := l.admitAndExecute(ctx, e, run)
	if !l.isAlive() {
		return nil
	}
	result.CallID, result.SessionID = e.Call.ID, e.Call.SessionID
	if result.WorkerID == "" { // else it is the result of an earlier attempt
		result.WorkerID, result.Attempt = l.holder.options.Worker, run.Attempt
	}
	waited := begun.Sub(now)
	result.QueueMS, result.LaneMS = core.Millis(run.Queued+waited), core.Millis(run.InLane+waited)
	result.RunMS = core.Millis(time.Since(begun))
	result.Waits = waits
	run.WillRetry(&result)
	return &result
}

// waitsOf is what an attempt that started at a time waited for. Before this worker claimed the
// lane, the call waited for its time and for a slot, or for a holder that was lost.
func (l *heldLane) waitsOf(e *core.Entry, run *Run, started time.Time) protocol.Waits {
	millis := func(d time.Duration) float64 {
		if d < time.Millisecond {
			return 0
		}
		return core.Millis(d)
	}
	after := time.Duration(0)
	if !e.AwaitsSince.IsZero() {
		after = e.FreeSince.Sub(e.AwaitsSince)
	}
	unclaimed := run.Queued - run.InLane
	lost, free := min(l.claim.lost.held, unclaimed), run.InLane-started.Sub(e.FreeSince)-after
	slot, held := unclaimed-lost, free
	by := e.HeldBy
	if by.ID == "" || e.HeldFor > 0 { // the mailbox was read meanwhile
		held = min(e.HeldFor, slot+free)
		slot += free - held
	}
	slot += e.Waited[core.WaitsForSlot]
	w := protocol.Waits{
		NotBeforeMS: millis(e.Call.Delay()),
		SlotMS:      millis(slot),
		LaneMS:      millis(held),
		AfterMS:     millis(after),
		LimitMS:     millis(e.Waited[core.WaitsForLimit]),
		RateMS:      millis(e.Waited[core.WaitsForRate]),
		PauseMS:     millis(e.Waited[core.WaitsForResume]),
		LostMS:      millis(lost),
	}
	if w.LostMS > 0 {
		w.LostWorker = l.claim.lost.worker
	}
	if w.LaneMS > 0 && by.Tenant == e.Call.Tenant {
		if w.HeldBy = by.ID; by.SessionID != e.Call.SessionID {
			w.HeldBySession = by.SessionID
		}
	}
	if w.AfterMS > 0 {
		if w.AfterCall = e.Ended.ID; e.Ended.SessionID != e.Call.SessionID {
			w.AfterSession = e.Ended.SessionID
		}
	}
	if w.LimitMS+w.RateMS > 0 {
		w.Limit = l.limit.name()
	}
	return w
}

// willRetry is [Run.WillRetry] for an attempt that started at a time. If the call is started again,
// it says when.
func (l *heldLane) willRetry(e *core.Entry, started time.Time) func(*protocol.Result) bool {
	decided := false
	return func(r *protocol.Result) bool {
		if decided || e.Call.Retry == nil {
			return !e.RetryAt.IsZero()
		}
		decided = true
		pause, again := e.Fail(r, l.holder.clock.Age(e.Accepted), time.Since(started), vary)
		if again {
			e.RetryAt = time.Now().Add(pause)
		}
		return again
	}
}

// vary changes a pause by up to a fifth.
func vary(pause time.Duration) time.Duration {
	return pause + time.Duration((rand.Float64()*2-1)/5*float64(pause)) //nolint:gosec // no secret
}

// admitAndExecute executes a call once the host admits it, for as long as the call may run, and
// returns when it began.
func (l *heldLane) admitAndExecute(ctx context.Context, e *core.Entry, run *Run) (r protocol.Result, begun time.Time) {
	leave, refusal := l.holder.host.Admit(ctx, run)
	begun = time.Now()
	if refusal != nil {
		return *refusal, begun
	}
	defer leave()
	l.limit.begin(e, begun)
	ctx, cancel := context.WithTimeoutCause(ctx, e.Call.RunFor(), ErrRunTimeout)
	defer cancel()
	if !l.isAlive() { // this process may have been suspended; execute looks again
		return r, begun
	}
	return l.holder.host.Execute(ctx, run), begun
}

// settle stores the result, and retries while the lease is trusted.
func (l *heldLane) settle(e *core.Entry, r *protocol.Result) bool {
	if r.WorkerID == "" {
		r.WorkerID = l.holder.options.Worker
		r.QueueMS = core.Millis(l.holder.clock.Age(e.Accepted))
	}
	r.FinishedAt = time.Now().UTC()
	r.Tool, r.Digest = e.Call.Tool, e.Call.Digest
	r.Sequence, r.Epoch = e.Seq, l.claim.epoch.Load()
	r.Tries = slices.DeleteFunc(slices.Clone(e.Tries), func(t protocol.Try) bool { return t.Attempt == r.Attempt })
	if !l.retry("result cannot be stored", func() error {
		return l.holder.store.StoreResult(l.ctx, e.Call, e.Accepted, nats.Header(e.Header).Get(wire.HeaderProof), r)
	}) {
		return false
	}
	l.holder.count(r.Status)
	l.holder.host.OnSettled(l.ctx, e.Call, r)
	l.holder.awaited.lookUp(protocol.CallRef{SessionID: r.SessionID, ID: r.CallID})
	l.dropPayload(e)
	l.unmark(e)
	return true
}

func (l *heldLane) onAlreadySettled(e *core.Entry) {
	e.SettledBefore = true
	l.holder.host.OnAlreadySettled(l.ctx, e.Call)
	l.dropPayload(e)
	l.unmark(e)
}

func (l *heldLane) dropPayload(e *core.Entry) {
	if stored, packed := e.Call.Payload.(wire.Stored); packed {
		l.holder.store.Blobs.Remove(l.ctx, stored)
	}
}

// earlyLookups are lookups of the results of scheduled calls that have not started. A call that is
// sent again after its result must not run again, so its result is looked up before it starts. On a
// single server the lookups of all scheduled calls are sent together, when the first of them
// starts. That may be early: a result that was stored before the call was accepted is visible to
// every reader of the call, and from then on only the holder stores one. Calls that a lost holder
// may have started are looked up at the last moment, because that holder's last writes may still
// arrive. One goroutine uses it.
type earlyLookups struct {
	store   *store.Store
	pending map[protocol.CallID]*store.Lookup
}

func newEarlyLookups(s *store.Store) earlyLookups {
	return earlyLookups{store: s, pending: map[protocol.CallID]*store.Lookup{}}
}

// lookupFor returns the lookup of a call that starts, and sends lookups for the other calls with
// it. It is nil when the call has to be looked up at the last moment.
func (a *earlyLookups) lookupFor(e *core.Entry, inHand []*core.Entry) *store.Lookup {
	if !a.isSafe(e) {
		return nil
	}
	if a.pending[e.Call.ID] == nil {
		var calls []*protocol.Call
		for _, other := range inHand {
			if !other.Running && a.pending[other.Call.ID] == nil && a.isSafe(other) {
				calls = append(calls, other.Call)
			}
		}
		a.request(calls...)
	}
	lookup := a.pending[e.Call.ID]
	delete(a.pending, e.Call.ID)
	return lookup
}

// request looks up the results of calls that were read after the claim was stored.
func (a *earlyLookups) request(calls ...*protocol.Call) {
	lookup := a.store.LookUpResults(calls...)
	for _, call := range calls {
		a.pending[call.ID] = lookup
	}
}

// isSafe reports whether the result of a call may be looked up before its turn comes.
func (a *earlyLookups) isSafe(e *core.Entry) bool {
	return !e.NoResult && e.IsFirst()
}

func (a *earlyLookups) remove(e *core.Entry) { delete(a.pending, e.Call.ID) }
