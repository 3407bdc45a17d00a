package lane

import (
	"context"
	"fmt"

	"github.com/toolfleet/toolfleet/internal/lane/store"
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
	s := l.holder.store
	return !s.Clustered() && l.holder.books.doubt(s.NC.ConnectedServerId(), e.accepted) != doubtNothing
}

// unblock is [Unblock] for whoever waits for a call, where the lane's ready message may be back.
func (p *Publisher) unblock(ctx context.Context, call *protocol.Call) error {
	if p.store.Clustered() {
		return nil
	}
	ready, err := p.store.Next(ctx, p.store.Fleet.ReadySubject(call.Pool, call.Lane().Hash()), 0)
	if err != nil || ready == nil || p.books.doubt(p.store.NC.ConnectedServerId(), ready.Time) == doubtNothing {
		return err
	}
	_, err = Unblock(ctx, p.store, call.Pool, call.Lane(), ready.Sequence)
	return err
}

// Unblock replaces a lane's ready message, which has the sequence ready, if the pool's consumer has settled it, and reports whether it did.
// Nobody holds the lane by such a message, and nobody ever will. It does nothing where servers are several.
func Unblock(ctx context.Context, s *store.Store, pool protocol.Pool, lane protocol.Lane, ready uint64) (bool, error) {
	if s.Clustered() {
		return false, nil
	}
	consumer, err := s.Consumer(ctx, pool)
	if err != nil || consumer == nil || consumer.AckFloor.Stream < ready || isHeld(ctx, s, pool, lane, ready) {
		return false, err
	}
	if err := s.Remove(ctx, ready); err != nil {
		return false, fmt.Errorf("ready message of lane %s that is back: %w", lane, err)
	}
	return true, s.PublishReady(ctx, pool, lane)
}
