package lane

import (
	"context"
	"time"

	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// tenure is for how long, and by which claim, this process holds a lane. It is safe for concurrent
// use, but for the call of the ready message.
type tenure struct {
	lane  protocol.Lane
	hash  protocol.LaneHash
	ready *readyMessage
	claim *claim
	life  *life
	since time.Time // when it began

	ctx      context.Context //nolint:containedctx // the lifetime of the claim is the lane's own
	cancel   context.CancelCauseFunc
	starting context.Context //nolint:containedctx // ends when no call may start any more
	stop     context.CancelFunc
}

func newTenure(life *life, ready *readyMessage, claim *claim) *tenure {
	t := &tenure{lane: ready.lane, hash: ready.hash, ready: ready, claim: claim, life: life, since: time.Now()}
	t.ctx, t.cancel = context.WithCancelCause(life.ctx)
	t.starting, t.stop = context.WithCancel(t.ctx)
	return t
}

func (t *tenure) isStopping() bool { return t.starting.Err() != nil }

// alive reports whether the lane is still surely ours; when it is not, it is given up.
func (t *tenure) alive() bool {
	if t.ctx.Err() == nil && !t.life.trusted(time.Now()) {
		t.cancel(ErrLost)
	}
	return t.ctx.Err() == nil
}

// isFresh waits until the lease is trusted for long enough that a removal surely arrives before its
// end, even if it is late by one more margin: servers take it from a former holder, too. It reports
// false when the lane is lost.
func (t *tenure) isFresh() bool {
	for t.alive() {
		if t.life.isFresh(time.Now()) {
			return true
		}
		pause.For(t.ctx, faultPause)
	}
	return false
}
