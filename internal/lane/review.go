package lane

import (
	"context"
	"errors"
	"time"
)

// A server on its own that is killed may bring back a ready message that was removed, and a claim.
// Nobody is given a ready message that the consumer has settled, and it refuses all others. The
// caretaker finds that out for calls that come later, but it is told each call once, which may have
// been before. So each worker looks after all ready messages of the pool after it has connected,
// and again: the first time has owners remove the claims that they do not hold.

// reviews is how many there are after each connection.
const reviews = 2

// review is when ready messages are looked at next.
type review struct {
	seen uint64 // connections
	left int
	at   time.Time
}

// round reviews when it is time to. What fails is done in the next round.
func (r *review) round(ctx context.Context, c *caretaker) error {
	lease := c.holder.lease
	if n := c.store.NC.Stats().Reconnects + 1; n != r.seen {
		r.seen, r.left, r.at = n, reviews, time.Now().Add(2*lease) // what is on its way has come by then
	}
	if r.left == 0 || time.Now().Before(r.at) || !c.store.Consistency().BringsBack() {
		return nil
	}
	consumer, err := c.store.Consumer(ctx, c.pool)
	if err != nil || consumer == nil {
		return err
	}
	for seq := uint64(0); ; {
		ready, err := c.store.Next(ctx, c.store.Fleet.ReadyFilter(c.pool), seq)
		if err != nil {
			return err
		}
		if ready == nil || ready.Sequence > consumer.Delivered.Stream {
			break
		}
		seq = ready.Sequence + 1
		if lane := Named(ready.Header); lane.Hash() == c.store.Fleet.LaneOfSubject(ready.Subject) {
			if err := c.inspect(ctx, lane, ready, consumer); err != nil && !errors.Is(err, errOnItsWay) {
				return err
			}
		}
	}
	r.left--
	r.at = time.Now().Add(lease)
	return nil
}
