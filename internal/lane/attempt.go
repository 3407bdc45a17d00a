package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// attempt takes a call that may start, with a slot, to its settled end. It
// reports false when nothing was settled, because the lane is lost or stopping.
func (l *held) attempt(e *entry) bool {
	result, known, err := l.before(e)
	for err != nil && l.alive() {
		l.complain(startTrouble, e, err)
		l.pause()
		result, known, err = l.before(e)
	}
	l.over(startTrouble, e)
	if err != nil {
		return false
	}
	if known { // its result is stored already
		l.wasSettled(e)
		return true
	}
	if result == nil {
		e.unsettled.Store(true)
		if result = l.unpack(e); result == nil {
			result = l.execute(e)
		}
		if result == nil {
			return false
		}
	}
	return l.settle(e, result)
}

// unpack puts the payload back that was too large for the call's message. It
// returns a result when there is no such payload any more, and nil when the call
// can go on, or is not ours any more.
func (l *held) unpack(e *entry) *protocol.Result {
	stored, packed := e.call.Payload.(protocol.Stored)
	defer l.over(payloadTrouble, e)
	for packed && l.alive() {
		raw, err := l.holder.store.Blobs.Get(l.ctx, stored)
		if errors.Is(err, jetstream.ErrObjectNotFound) {
			r := protocol.NewResult(e.call, protocol.StatusRejected,
				protocol.Errorf(protocol.CodeInvalidPayload, "the payload of the call is not in the fleet's object store any more; it was not run"))
			return &r
		}
		if err == nil {
			full := *e.call
			if full.Payload, err = protocol.DecodePayload(raw); err != nil {
				r := protocol.NewResult(e.call, protocol.StatusRejected, protocol.Errorf(protocol.CodeInvalidPayload, "the stored payload: %v", err))
				return &r
			}
			e.full = &full
			return nil
		}
		if refusal := l.refusal(e); refusal != nil { // it may be long until the payload can be read
			return refusal
		}
		l.complain(payloadTrouble, e, err)
		l.pause()
	}
	return nil
}

// before decides whether a call is to be executed: it returns a result instead
// when there is one to give, or known when a result is stored already.
func (l *held) before(e *entry) (result *protocol.Result, known bool, err error) {
	switch {
	case e.mayHaveResult() || l.mayBeBack(e):
		known, err = l.hasNoneSurely(e)
	case e.call.Delivery != protocol.AtMostOnce: // which is looked for when it has its mark
		known, err = l.hasResult(e)
		known, err = l.surely(e, known, err)
	}
	if err != nil || known {
		return nil, known, err
	}
	if refusal := l.refusal(e); refusal != nil {
		return refusal, false, nil
	}
	if result, err = l.countStart(e); err != nil || e.call.Delivery != protocol.AtMostOnce {
		return result, false, err
	}
	if known, err = l.hasNoneSurely(e); err != nil || known {
		return nil, known, err
	}
	return result, false, nil
}

// hasNoneSurely reports whether a call has a result, and believes no old answer.
func (l *held) hasNoneSurely(e *entry) (known bool, err error) {
	known, err = l.holder.store.HasResult(l.ctx, e.call.SessionID, e.call.ID)
	return l.surely(e, known, err)
}

// surely makes sure that a call of which no result was found has none, where servers may give old answers.
func (l *held) surely(e *entry, known bool, err error) (bool, error) {
	if err != nil || known || !e.mayHaveResult() && l.holder.contact.calm(time.Now()) {
		return known, err
	}
	return false, l.holder.store.SurelyNoResult(l.ctx, e.call)
}

// refusal returns the result of a call that is not to be started at all.
func (l *held) refusal(e *entry) *protocol.Result {
	l.mu.Lock()
	cancelled := e.cancelled
	l.mu.Unlock()
	return l.holder.refusal(e, cancelled)
}

// refusal is that of a held lane. A call whose time is over says so also when it is cancelled: such a request may be
// that of a worker which was about to answer it ([overdue]).
func (h *Holder) refusal(e *entry, cancelled bool) *protocol.Result {
	age := h.clock.Age(e.accepted)
	reject := func(status protocol.Status, code protocol.Code, format string, args ...any) *protocol.Result {
		r := protocol.NewResult(e.call, status, protocol.Errorf(code, format, args...))
		return &r
	}
	switch {
	case e.mayHaveRun() && e.call.Expired(age):
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call's deadline passed, and it is not started again; a worker that was lost may have started it")
	case e.call.Expired(age):
		return reject(protocol.StatusRejected, protocol.CodeDeadline,
			"the call's deadline passed while it waited (%s after it was accepted); it was not run", age.Round(time.Millisecond))
	case !e.mayHaveRun() && e.call.QueueTimeout > 0 && age >= e.call.QueueTimeout.Duration():
		return reject(protocol.StatusRejected, protocol.CodeQueueTimeout,
			"the call waited %s and may wait %s; it was not run", age.Round(time.Millisecond), e.call.QueueTimeout.Duration())
	case cancelled && e.mayHaveRun():
		return reject(protocol.StatusOutcomeUnknown, protocol.CodeOutcomeUnknown,
			"the call was cancelled, and is not started again; a worker that was lost may have started it")
	case cancelled:
		return reject(protocol.StatusCancelled, protocol.CodeCancelled, "the call was cancelled before it started")
	case e.fault != nil:
		return reject(protocol.StatusRejected, protocol.CodeInvalidPayload, "the worker cannot read the call: %v", e.fault)
	}
	return nil
}

// countStart books a start of the call. It returns a result when the call must
// not be started again.
func (l *held) countStart(e *entry) (*protocol.Result, error) {
	if e.call.Delivery == protocol.AtMostOnce {
		first := len(e.ownMarks) > 0 // by an earlier try, which did not get further
		var err error
		if !e.marked && !first {
			first, err = l.mark(e, 1)
		}
		// Waiting for room would keep a slot that makes room. A cluster that is full says so also when the mark is there.
		if errors.Is(err, ErrFull) && e.starts == 0 && !e.mayHaveStarted {
			r := protocol.NewResult(e.call, protocol.StatusRejected, protocol.Errorf(protocol.CodeFleetFull,
				"the fleet has no room to note the start of the call; it was not run, try again later"))
			return &r, nil
		}
		if first || err != nil && !errors.Is(err, ErrFull) {
			return nil, err
		}
		r := protocol.NewResult(e.call, protocol.StatusOutcomeUnknown, protocol.Errorf(protocol.CodeOutcomeUnknown,
			"the worker that ran the call was lost; it may or may not have had its effects, and is not run again"))
		r.Attempt = 1
		return &r, nil
	}
	if !e.mayHaveStarted && e.starts == 0 {
		return nil, nil //nolint:nilnil // the first start, which needs no mark
	}
	for n := max(e.starts, 1) + 1; ; n++ {
		if n > e.call.Attempts() {
			r := protocol.NewResult(e.call, protocol.StatusFailed, protocol.Errorf(protocol.CodeAttemptsExhausted,
				"the worker was lost at each of %d attempts; the call may be what kills it", n-1))
			r.Attempt = n - 1
			return &r, nil
		}
		stored, err := l.mark(e, n)
		if errors.Is(err, ErrFull) { // waiting for room would keep a slot that makes room
			e.starts = n
			return nil, nil //nolint:nilnil // the start is counted here only
		}
		if err != nil || stored {
			return nil, err
		}
	}
}

// mark stores the n-th start mark of a call; it reports false when somebody else stored it before.
func (l *held) mark(e *entry, n int) (bool, error) {
	o := l.holder.options
	msg := nats.NewMsg(o.Fleet.StartSubject(o.Pool, l.hash, e.call.ID, n))
	msg.Data = l.markText()
	seq, answer, err := l.holder.store.Publish(l.ctx, msg)
	switch {
	case err != nil:
		e.unsure = n // it may be stored all the same
		return false, fmt.Errorf("mark start %d of call %s: %w", n, e.call.ID, err)
	case answer == store.Full:
		return false, fmt.Errorf("mark start %d of call %s: %w", n, e.call.ID, ErrFull)
	case answer == store.Occupied && e.unsure == n:
		stored, err := l.holder.store.Next(l.ctx, msg.Subject, 0)
		if err != nil {
			return false, fmt.Errorf("read start mark %d of call %s: %w", n, e.call.ID, err)
		}
		if stored == nil {
			return false, fmt.Errorf("mark start %d of call %s: %w", n, e.call.ID, store.ErrUnderWay)
		}
		if bytes.Equal(stored.Data, msg.Data) {
			seq, answer = stored.Sequence, store.Accepted
		}
	}
	e.starts = n
	if answer == store.Accepted {
		e.ownMarks = append(e.ownMarks, seq)
	}
	return answer == store.Accepted, nil
}

// execute runs the call; it returns nil when nothing may be committed afterwards.
func (l *held) execute(e *entry) *protocol.Result {
	now := time.Now()
	age := l.holder.clock.Age(e.accepted)
	call := e.call
	if e.full != nil {
		call = e.full
	}
	run := &Run{
		Call: call, Header: e.header, Attempt: max(e.starts, 1), Sequence: e.seq,
		Queued: age, InLane: min(age, now.Sub(l.claimed)),
		LeaseEnd: l.lease.end, Fence: l.fence(),
	}
	ctx, cancel := context.WithTimeoutCause(l.ctx, e.call.RunFor(), ErrRunTimeout)
	defer cancel()
	if life := e.call.LifeTime(); life > 0 {
		var cancelLife context.CancelFunc
		ctx, cancelLife = context.WithTimeoutCause(ctx, max(life-age, 0), ErrDeadline)
		defer cancelLife()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	l.mu.Lock()
	e.stop = stop
	if e.cancelled { // between the last check and now
		stop(ErrCancelled)
	}
	l.began(run, now)
	l.mu.Unlock()
	defer l.ended(run)

	if !l.alive() { // this process may have slept since the lane was last known to be ours
		return nil
	}
	result := l.holder.executor.Execute(ctx, run)
	if !l.alive() {
		return nil
	}
	result.CallID, result.SessionID = e.call.ID, e.call.SessionID
	result.WorkerID, result.Attempt = l.holder.options.Worker, run.Attempt
	result.QueueMS, result.LaneMS = millis(run.Queued), millis(run.InLane)
	result.RunMS = millis(time.Since(now))
	return &result
}

// fence grows with each ready message, and with each delivery of one: as far as deliveries are
// counted right.
func (l *held) fence() uint64 { return l.ready<<16 | min(l.delivered, 1<<16-1) }

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// settle stores the result, trying for as long as the lease is trusted.
func (l *held) settle(e *entry, r *protocol.Result) bool {
	if r.WorkerID == "" {
		r.WorkerID = l.holder.options.Worker
		r.QueueMS = millis(l.holder.clock.Age(e.accepted))
	}
	r.FinishedAt = time.Now().UTC()
	defer l.over(resultTrouble, e)
	for {
		if !l.alive() {
			return false
		}
		err := l.holder.store.StoreResult(l.ctx, r)
		if err == nil {
			l.holder.options.Settled(l.ctx, e.call, r)
			l.dropPayload(e)
			return true
		}
		l.complain(resultTrouble, e, err)
		l.pause()
	}
}

// wasSettled notes that the result of a call was stored already when its turn came.
func (l *held) wasSettled(e *entry) {
	e.settledBefore = true
	l.holder.options.SettledBefore(l.ctx, e.call)
	l.dropPayload(e)
}

// dropPayload deletes the body that a settled call has in the object store.
func (l *held) dropPayload(e *entry) {
	if stored, packed := e.call.Payload.(protocol.Stored); packed {
		l.holder.store.Blobs.Remove(l.ctx, stored)
	}
}
