package lane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// attempt takes a call that may start, with a slot, to its settled end. asked is a lookup of its
// result, or nil. It reports false when nothing was settled, because the lane is lost or stopping.
func (l *held) attempt(e *core.Entry, asked *store.Lookup) bool {
	var result *protocol.Result
	known := false
	if !l.tries("call cannot be started", func() (err error) {
		result, known, err = l.before(e, asked)
		asked = nil // it serves one look
		return err
	}) {
		return false
	}
	if known { // its result is stored already
		l.wasSettled(e)
		return true
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
		r := protocol.NewResult(e.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeInvalidPayload, format, args...))
		result = &r
	}
	l.tries("payload cannot be read", func() error {
		raw, err := l.holder.store.Blobs.Get(l.ctx, stored)
		switch {
		case errors.Is(err, jetstream.ErrObjectNotFound):
			reject("the payload of the call is not in the fleet's object store any more; it was not run")
			return nil
		case err != nil:
			if result = l.refusal(e); result != nil { // it may be long until the payload can be read
				return nil
			}
			return err
		}
		full := *e.Call
		if full.Payload, err = protocol.DecodePayload(raw); err != nil {
			reject("the stored payload: %v", err)
		}
		e.Full = &full
		return nil
	})
	return result
}

// before decides whether a call is to be executed: it returns a result instead
// when there is one to give, or known when a result is stored already.
func (l *held) before(e *core.Entry, asked *store.Lookup) (result *protocol.Result, known bool, err error) {
	if known, err = l.isSettled(e, asked); err != nil || known {
		return nil, known, err
	}
	if result = l.refusal(e); result == nil {
		result, err = l.countStart(e)
	}
	if result != nil && (e.MayHaveRun() || e.Starts > 0) {
		if covered := l.holder.options.Covered(l.ctx, l.run(e)); covered != nil {
			return covered, false, nil
		}
	}
	return result, false, err
}

// isSettled reports whether a call has its result already: whoever sends it once more, however
// late, does not have it run again. In a cluster an answer can be old, so where something says that
// there may be a result, it is made sure that there is none.
func (l *held) isSettled(e *core.Entry, asked *store.Lookup) (bool, error) {
	known, err := l.holder.store.HasResult(l.ctx, e.Call, asked)
	if err != nil || known {
		return known, err
	}
	if e.MayHaveResult() || e.Call.Delivery == protocol.AtMostOnce || l.mail.snapshot.MayBeOld(e.Seq) {
		err = l.holder.store.SurelyNoResult(l.ctx, e.Call)
	}
	return false, err
}

func (l *held) refusal(e *core.Entry) *protocol.Result {
	l.running.mu.Lock()
	defer l.running.mu.Unlock()
	return e.Refuse(l.holder.clock.Age(e.Accepted))
}

// countStart notes a start of the call. It returns a result when the call must
// not be started again.
func (l *held) countStart(e *core.Entry) (*protocol.Result, error) {
	for {
		n, result := e.NextStart()
		if n == 0 {
			return result, nil
		}
		stored, err := l.mark(e, n)
		switch {
		case errors.Is(err, ErrFull) && e.Call.Delivery == protocol.AtMostOnce:
			// Waiting for room would keep a slot that makes room.
			r := protocol.NewResult(e.Call, protocol.StatusRejected, protocol.Errorf(protocol.CodeFleetFull,
				"the fleet has no room to note the start of the call; it was not run, try again later"))
			return &r, nil
		case errors.Is(err, ErrFull): // the start is counted here only
			e.Starts = n
			return nil, nil //nolint:nilnil // it starts
		case err != nil || stored:
			return nil, err
		case e.Call.Delivery == protocol.AtMostOnce:
			return e.OutcomeUnknown(), nil
		}
	}
}

// mark stores the n-th start mark of a call; it reports false when another holder stored it before.
func (l *held) mark(e *core.Entry, n int) (bool, error) {
	o := l.holder.options
	msg := nats.NewMsg(o.Fleet.StartSubject(o.Pool, l.hash, e.Call.ID, n))
	msg.Data = fmt.Appendf(nil, "%s %d", o.Worker, l.claim.epoch.Load())
	seq, answer, err := l.holder.store.Publish(l.ctx, msg)
	switch {
	case err != nil: // it may be stored all the same
		return false, fmt.Errorf("mark start %d of call %s: %w", n, e.Call.ID, err)
	case answer == store.Full:
		return false, fmt.Errorf("mark start %d of call %s: %w", n, e.Call.ID, ErrFull)
	case answer == store.Occupied:
		found, err := l.holder.store.Next(l.ctx, msg.Subject, 0)
		if err != nil {
			return false, fmt.Errorf("read start mark %d of call %s: %w", n, e.Call.ID, err)
		}
		if found == nil {
			return false, fmt.Errorf("mark start %d of call %s: %w", n, e.Call.ID, store.ErrUnderWay)
		}
		if e.Starts = n; !bytes.Equal(found.Data, msg.Data) {
			return false, nil
		}
		seq = found.Sequence // an attempt whose answer was lost
	}
	e.Starts = n
	e.OwnMarks = append(e.OwnMarks, seq)
	return true, nil
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
	now, run := time.Now(), l.run(e)
	ctx, cancel := context.WithTimeoutCause(l.ctx, e.Call.RunFor(), ErrRunTimeout)
	defer cancel()
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
	result := l.holder.executor.Execute(ctx, run)
	if !l.alive() {
		return nil
	}
	result.CallID, result.SessionID = e.Call.ID, e.Call.SessionID
	if result.WorkerID == "" { // else it is of an earlier attempt
		result.WorkerID, result.Attempt = l.holder.options.Worker, run.Attempt
	}
	result.QueueMS, result.LaneMS = millis(run.Queued), millis(run.InLane)
	result.RunMS = millis(time.Since(now))
	return &result
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
	l.holder.options.Settled(l.ctx, e.Call, r)
	l.dropPayload(e)
	return true
}

func (l *held) wasSettled(e *core.Entry) {
	e.SettledBefore = true
	l.holder.options.SettledBefore(l.ctx, e.Call)
	l.dropPayload(e)
}

func (l *held) dropPayload(e *core.Entry) {
	if stored, packed := e.Call.Payload.(protocol.Stored); packed {
		l.holder.store.Blobs.Remove(l.ctx, stored)
	}
}
