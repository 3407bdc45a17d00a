package calls

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// heldBack is calls that were not sent because a lane or a pool is full. They are sent again after
// a pause that doubles, all together and in their order.
type heldBack struct {
	calls []*followed
	pause time.Duration
	again <-chan time.Time // nil without calls
}

// maxBusyPause bounds the pause before calls are sent again.
const maxBusyPause = 2 * time.Second

// holdBack keeps a call that met a full lane or pool, and reports false if its time ends before it
// could be sent again.
func (b *batch) holdBack(f *followed, fault error) bool {
	bound, ok := errors.AsType[*protocol.Error](fault)
	if !ok {
		return false
	}
	h := &b.heldBack
	pause := cmp.Or(h.pause, bound.RetryAfter.Duration())
	if !f.mayWait(pause) {
		return false
	}
	h.calls = append(h.calls, f)
	if h.again == nil {
		const part = 5
		h.again = time.After(pause + rand.N(pause/part)) //nolint:gosec // no secret
		h.pause = min(2*pause, maxBusyPause)
	}
	b.reportWaits(map[protocol.CallID]string{f.call.ID: bound.Error()})
	return true
}

// mayWait reports whether a call that was not sent could be sent after a pause.
func (f *followed) mayWait(pause time.Duration) bool {
	end := f.lastStart()
	return end.IsZero() || !time.Now().Add(pause).After(end)
}

func (f *followed) lastStart() time.Time { return lastStart(f.call, f.since) }

// lastStart is when a call that is sent since then starts at the latest; zero is any time.
func lastStart(call *protocol.Call, since time.Time) time.Time {
	end := call.Deadline
	if wait := call.QueueTimeout.Duration(); wait > 0 {
		if last := since.Add(wait); end.IsZero() || last.Before(end) {
			end = last
		}
	}
	return end
}

// sendAgain sends the calls that were held back.
func (b *batch) sendAgain(ctx context.Context) error {
	calls := b.takeHeldBack()
	if err := b.send(ctx, calls); err != nil {
		return err
	}
	for _, f := range calls {
		if f.accepted {
			b.reportWaits(map[protocol.CallID]string{f.call.ID: ""})
		}
	}
	if b.heldBack.again == nil {
		b.heldBack.pause = 0
	}
	return nil
}

// takeHeldBack returns the calls that were held back and are open.
func (b *batch) takeHeldBack() []*followed {
	calls := slices.DeleteFunc(b.heldBack.calls, func(f *followed) bool { return b.open[f.call.ID] != f })
	b.heldBack.calls, b.heldBack.again = nil, nil
	return calls
}
