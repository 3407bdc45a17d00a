package lane

import (
	"context"
	"fmt"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server on its own that is killed may bring back what was removed long before. It writes a removal down behind what is stored,
// but not that of the last message of a file; and it keeps such a file while something older is in the stream. When it comes back
// it reads that message from the file. The servers of a cluster agree on what was removed.
//
// A call that is back has its result, which is looked for before it starts (held.mayBeBack). A ready message that is back is never
// delivered, because the consumer knows that it is settled, and it stands in the way of every other one.

// mayBeBack reports whether a call may have been settled and removed before the server's last start.
func (l *held) mayBeBack(e *entry) bool {
	h, now := l.holder, time.Now()
	return !h.store.Clustered() && h.books.doubt(h.clock.AgeAt(now, e.accepted), now) != doubtNothing
}

// unblock removes the ready message of a call's lane if it is one that the pool's consumer has settled, and makes the lane ready.
// Nobody holds the lane by such a message, and nobody ever will.
func (p *Publisher) unblock(ctx context.Context, call *protocol.Call) error {
	if p.store.Clustered() {
		return nil
	}
	p.books.meet(p.store.NC.ConnectedServerId(), time.Now())
	ready, err := p.store.Next(ctx, p.store.Fleet.ReadySubject(call.Pool, call.Lane().Hash()), 0)
	if err != nil || ready == nil || p.books.doubt(p.clock.Age(ready.Time), time.Now()) == doubtNothing {
		return err
	}
	pool, err := p.consumer(ctx, call.Pool)
	if err != nil || pool == nil || pool.AckFloor.Stream < ready.Sequence || p.isHeld(ctx, call, ready.Sequence) {
		return err
	}
	if err := p.store.Remove(ctx, ready.Sequence); err != nil {
		return fmt.Errorf("ready message of lane %s that is back: %w", call.Lane(), err)
	}
	return p.store.PublishReady(ctx, call.Pool, call.Lane())
}
