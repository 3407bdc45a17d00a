package calls

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/internal/lane"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// maxUnsent bounds how many calls that were not sent are remembered; the oldest are forgotten.
const maxUnsent = 4096

// before orders calls by their After as long as the fleet does not have them: it knows nothing of a
// call that is refused or never sent, and would let those that wait for it wait until their time is
// over. So a call is sent after those that it waits for, and is rejected when one was not sent. The
// lock of futures guards all fields.
type before struct {
	begun  uint64                      // calls
	trials map[protocol.CallRef]*trial // calls that are being sent
	failed map[protocol.CallRef]bool   // calls that were not sent
	oldest []protocol.CallRef          // of failed, in order; some may be sent again
	parked map[futureLane]*time.Timer  // lanes whose first call waits for a trial; nil without an end
}

// trial is a call that is being sent, by one or more senders at the same time.
type trial struct {
	senders int
	number  uint64        // of the first sender's call, in the order in which calls began
	lanes   []futureLane  // wait for its end
	over    chan struct{} // closed at its end; nil if only lanes wait
}

// begin notes that a call is being sent; the lock is held.
func (b *before) begin(ref protocol.CallRef) {
	delete(b.failed, ref)
	b.begun++
	if b.trials[ref] == nil {
		b.trials[ref] = &trial{number: b.begun}
	}
	b.trials[ref].senders++
}

// trialsOf returns the calls before a call that are being sent; the lock is held. Those that begin
// later are not waited for, so that no two calls wait for each other.
func (b *before) trialsOf(call *protocol.Call) (all []*trial) {
	for _, ref := range call.After {
		if t := b.trials[ref]; t != nil {
			all = append(all, t)
		}
	}
	return all
}

// fail notes that a call was not sent; the lock is held.
func (b *before) fail(ref protocol.CallRef) {
	if len(b.oldest) == maxUnsent {
		delete(b.failed, b.oldest[0])
		b.oldest = b.oldest[1:]
	}
	b.failed[ref], b.oldest = true, append(b.oldest, ref)
}

// endTrial notes that a call was sent or, if failed is set, was not; the lock is held.
func (t *futures) endTrial(ref protocol.CallRef, failed bool) {
	if failed {
		t.fail(ref)
	}
	a := t.trials[ref]
	if a.senders--; a.senders > 0 {
		return
	}
	delete(t.trials, ref)
	if a.over != nil {
		close(a.over)
	}
	for _, at := range a.lanes {
		t.wake(at)
	}
}

// NotSent notes that a call was not sent, and is not dispatched: those that wait for it are
// rejected.
func (d *Dispatcher) NotSent(ref protocol.CallRef) {
	for _, part := range d.parts() {
		part.futures.mu.Lock()
		part.futures.fail(ref)
		part.futures.mu.Unlock()
	}
}

// park has a lane wait whose first call waits for one that is being sent; the lock is held. It
// reports false if nothing is to be waited for any more.
func (t *futures) park(f *Future, at futureLane) bool {
	for _, a := range f.after {
		if a.senders == 0 || !f.mayWait(0) {
			continue
		}
		a.lanes = append(a.lanes, at)
		t.parked[at] = nil
		if end := f.lastStart(); !end.IsZero() {
			t.parked[at] = time.AfterFunc(time.Until(end), func() {
				t.mu.Lock()
				defer t.mu.Unlock()
				t.wake(at)
			})
		}
		for _, waiting := range t.lanes[at] {
			waiting.look() // it may be cancelled now
		}
		return true
	}
	return false
}

// isParked reports whether the first call of a lane waits for a trial; the lock is held.
func (t *futures) isParked(at futureLane) bool {
	_, parked := t.parked[at]
	return parked
}

// wake has the calls of a parked lane sent; the lock is held.
func (t *futures) wake(at futureLane) {
	timer, parked := t.parked[at]
	if !parked {
		return
	}
	if timer != nil {
		timer.Stop()
	}
	delete(t.parked, at)
	t.turns = append(t.turns, at)
	t.startSender()
}

// sendAfter waits until the calls that a call waits for were sent, and notes that the call is being
// sent until done is called; another call of done changes nothing. It returns a result instead if
// the call cannot run, or an error that wraps [lane.ErrNotSent] if ctx ends.
func (t *futures) sendAfter(ctx context.Context, call *protocol.Call) (done func(failed bool), unmet *protocol.Result, err error) {
	ref := refOf(call)
	t.mu.Lock()
	all := t.trialsOf(call)
	for _, a := range all {
		if a.over == nil {
			a.over = make(chan struct{})
		}
	}
	t.begin(ref)
	t.mu.Unlock()
	open := true
	done = func(failed bool) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if open {
			open = false
			t.endTrial(ref, failed)
		}
	}
	if unmet, err = t.awaitTrials(ctx, call, all); err != nil || unmet != nil {
		done(true)
	}
	return done, unmet, err
}

func (t *futures) awaitTrials(ctx context.Context, call *protocol.Call, all []*trial) (unmet *protocol.Result, err error) {
	limit := ctx
	if end := lastStart(call, time.Now()); len(all) > 0 && !end.IsZero() {
		var cancel context.CancelFunc
		limit, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	for _, a := range all {
		select {
		case <-a.over:
			continue
		case <-t.ctx.Done():
			return nil, neverSent(call, ErrClosed)
		case <-limit.Done():
		}
		if ctx.Err() != nil {
			return nil, t.d.notSent(ctx, call)
		}
		break // its time is over
	}
	return t.unmet(ctx, call, all), nil
}

// unmet is the result of a call that cannot run, because one that it waits for was not sent, or not
// in time. It is nil if this process knows of no such call, or if the fleet has that call from
// another process or an earlier attempt.
func (t *futures) unmet(ctx context.Context, call *protocol.Call, trials []*trial) *protocol.Result {
	if len(call.After) == 0 {
		return nil
	}
	t.mu.Lock()
	late := slices.ContainsFunc(trials, func(a *trial) bool { return a.senders > 0 })
	var failed []protocol.CallRef
	for _, ref := range call.After {
		if t.failed[ref] || late && t.trials[ref] != nil {
			failed = append(failed, ref)
		}
	}
	t.mu.Unlock()
	for _, ref := range failed {
		if t.d.has(ctx, ref) {
			continue
		}
		r := wire.NewResult(call, protocol.StatusRejected, protocol.Errorf(protocol.CodeAfterUnmet, "call %s, which the call waits for, was not sent; the call was not run", ref))
		return &r
	}
	return nil
}

// has reports whether the fleet has a call or its result, or does not say.
func (d *Dispatcher) has(ctx context.Context, ref protocol.CallRef) bool {
	call, r, err := d.Find(ctx, "", ref)
	return err != nil || call != nil || r != nil
}

// notRun reports whether a call that was not accepted does not run either.
func notRun(r *protocol.Result, err error) bool {
	if r != nil {
		return r.Status == protocol.StatusRejected || r.Status == protocol.StatusCancelled
	}
	return errors.Is(err, lane.ErrNotSent)
}
