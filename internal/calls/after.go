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
// call that is refused or never sent, and would let the calls that wait for it wait until their
// time is over. So a call is sent after the calls that it waits for, and is rejected if one of them
// was not sent. The lock of the table guards all fields.
type before struct {
	trials map[protocol.CallRef]*trial // calls that are being sent
	failed map[protocol.CallRef]bool   // calls that were not sent
	oldest []protocol.CallRef          // of failed, in order; some may be sent again
	parked map[poolLane]*time.Timer    // lanes whose first call waits for a trial; nil without an end
}

// trial is a call that is being sent, by one or more senders at the same time.
type trial struct {
	senders int
	lanes   []poolLane // wait for its end
}

// begin notes that a call is being sent; the lock is held.
func (b *before) begin(ref protocol.CallRef) {
	delete(b.failed, ref)
	if b.trials[ref] == nil {
		b.trials[ref] = &trial{}
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
func (t *table) endTrial(ref protocol.CallRef, failed bool) {
	if failed {
		t.fail(ref)
	}
	a := t.trials[ref]
	if a.senders--; a.senders > 0 {
		return
	}
	delete(t.trials, ref)
	for _, at := range a.lanes {
		t.wake(at)
	}
}

// NotSent notes that a call is not sent at all: the calls that wait for it are
// rejected.
func (d *Dispatcher) NotSent(ref protocol.CallRef) {
	for _, part := range d.parts() {
		part.table.mu.Lock()
		part.table.fail(ref)
		part.table.mu.Unlock()
	}
}

// awaited returns the calls that a call waits for and that are being sent, while it may wait; the
// lock is held.
func (t *table) awaited(h *Handle) []*trial {
	if !h.mayWait(0) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(h.after), func(a *trial) bool { return a.senders == 0 })
}

// park suspends a lane whose first call waits for a call that is being sent; the lock is held. It
// reports false if nothing is to be waited for any more.
func (t *table) park(h *Handle, at poolLane) bool {
	awaited := t.awaited(h)
	if len(awaited) == 0 {
		return false
	}
	awaited[0].lanes = append(awaited[0].lanes, at)
	t.parked[at] = nil
	if end := h.lastStart(); !end.IsZero() {
		t.parked[at] = time.AfterFunc(time.Until(end), func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			t.wake(at)
		})
	}
	for _, waiting := range t.lanes[at] {
		waiting.signalChange() // it may be cancelled now
	}
	return true
}

// wake has the calls of a parked lane sent; the lock is held.
func (t *table) wake(at poolLane) {
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

// unmet returns the result of a call that cannot run because a call of its After was not sent, or
// not in time. It is nil if this process knows of no such call, or if the fleet has that call from
// another process or an earlier attempt.
func (t *table) unmet(ctx context.Context, call *protocol.Call, trials []*trial) *protocol.Result {
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
		r := wire.NewResult(call, protocol.StatusRejected,
			protocol.Errorf(protocol.CodeAfterUnmet, "call %s, which the call waits for, was not sent; the call was not run", ref))
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
