package lane

import (
	"context"
	"log/slog"
	"time"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A server on its own that is killed may bring back a ready message that was removed, and a claim.
// Nobody is given a ready message that the consumer has settled, and it refuses all others. The
// caretaker finds that out for calls that come later, but it is told each call once, which may have
// been before. So each worker reviews the pool's ready messages after it has connected, and again:
// the first review has owners remove the claims that they do not hold.

// reviews is how many there are after each connection.
const reviews = 2

// review is when ready messages are looked at next.
type review struct {
	connected  bool
	reconnects uint64
	left       int
	at         time.Time
}

// round reviews when it is time to. What fails is done in the next round.
func (r *review) round(ctx context.Context, c *caretaker) {
	if n := c.store.NC.Stats().Reconnects; !r.connected || n != r.reconnects {
		if r.left == 0 {
			r.at = time.Time{}
		}
		r.connected, r.reconnects, r.left = true, n, reviews
	}
	if r.left == 0 || time.Now().Before(r.at) || c.store.Clustered() {
		return
	}
	consumer, err := c.store.Consumer(ctx, c.pool)
	if err != nil || consumer == nil {
		return
	}
	lease := consumer.Config.AckWait
	if r.at.IsZero() { // what is on its way has come by then
		r.at = time.Now().Add(2 * lease)
		return
	}
	if err := c.reviewReady(ctx, consumer.Delivered.Stream, consumer.TimeStamp.Add(-2*lease)); err != nil {
		c.logger.DebugContext(ctx, "ready messages are not reviewed", slog.Any("error", err))
		return
	}
	r.left--
	r.at = time.Now().Add(lease)
}

// reviewReady replaces ready messages up to a sequence, and stored before a time, of lanes that
// nobody holds.
func (c *caretaker) reviewReady(ctx context.Context, delivered uint64, before time.Time) error {
	fleet := c.store.Fleet
	for seq := uint64(0); ; {
		ready, err := c.store.Next(ctx, fleet.ReadyFilter(c.pool), seq)
		if err != nil || ready == nil || ready.Sequence > delivered {
			return err
		}
		seq = ready.Sequence + 1
		lane := Named(ready.Header)
		if ready.Time.After(before) || lane.Hash() != fleet.LaneOfSubject(ready.Subject) {
			continue
		}
		claim, err := c.store.Claim(ctx, c.pool, lane.Hash())
		switch {
		case err != nil:
			return err
		case claim == nil || claim.Life == "":
			c.replace(ctx, lane)
		default:
			c.ask(lane)
		}
	}
}

// ask has the owner of a lane's claim look whether it holds the lane, and remove the claim if not.
func (c *caretaker) ask(lane protocol.Lane) {
	_ = c.store.NC.Publish(c.store.Fleet.AskSubject(c.pool, lane.Hash()), nil)
}
