package lane

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// A publisher that is lost between appending a call and publishing the ready message, or that left
// it out because it counted on the lane's holder, leaves a mailbox to which nobody comes. So the
// workers of a pool see to it that each entry is followed by one attempt to publish the ready
// message of its lane. One is enough for ever: if it is refused, the lane is ready or held, and
// whoever lets go of it looks into the mailbox after the ready message is removed.
//
// A durable consumer, which all workers of a pool share, tells each entry once. About once a second
// a worker takes what is new. What is settled by then is deleted, and never told; so this costs
// nothing but for what waits longer. The worker acknowledges an entry when it has made the attempt.
// Should it be lost before, another worker is told the entry.

// caretaker makes lanes ready in which something waits and whose ready message may be missing.
type caretaker struct {
	holder   *Holder
	store    *store.Store
	pool     protocol.Pool
	logger   *slog.Logger
	consumer jetstream.Consumer // told what waits; opened when it is needed
	review   review
}

const (
	// carePeriod is how often a worker looks after what is new.
	carePeriod = time.Second
	// careBatch is how many entries are taken at once.
	careBatch = 256
	// careAtOnce is how many lanes are made ready at the same time.
	careAtOnce = 16
)

// run looks after the pool's lanes until ctx ends.
func (c *caretaker) run(ctx context.Context) {
	for ok := true; ok; ok = pause.For(ctx, carePeriod) {
		if err := errors.Join(c.review.round(ctx, c), c.round(ctx)); err != nil {
			c.logger.DebugContext(ctx, "waiting lanes are not looked after", slog.Any("error", err)) // until the next round
			c.consumer = nil                                                                         // somebody may have deleted it
		}
	}
}

// round takes batches until nothing more is there.
func (c *caretaker) round(ctx context.Context) (err error) {
	if c.consumer == nil {
		opening, cancel := context.WithTimeout(ctx, store.OpTimeout)
		defer cancel()
		if c.consumer, err = natsio.EnsureCare(opening, c.store.JS, c.store.Fleet, c.pool); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		batch, err := c.consumer.FetchNoWait(careBatch)
		if err != nil {
			return err
		}
		var entries []jetstream.Msg
		for entry := range batch.Messages() {
			entries = append(entries, entry)
		}
		if err := errors.Join(batch.Error(), c.lookAfter(ctx, entries)); err != nil || len(entries) < careBatch {
			return err
		}
	}
	return nil
}

// lookAfter makes the lanes of some entries ready, each once, and acknowledges the entries of those
// for which that went well.
func (c *caretaker) lookAfter(ctx context.Context, entries []jetstream.Msg) error {
	byLane := map[protocol.Lane][]jetstream.Msg{}
	for _, entry := range entries {
		lane := c.laneOf(entry)
		byLane[lane] = append(byLane[lane], entry)
	}
	var group errgroup.Group
	group.SetLimit(careAtOnce)
	for lane, entries := range byLane {
		group.Go(func() error {
			if lane != "" {
				if err := c.makeReady(ctx, lane); errors.Is(err, errOnItsWay) {
					return nil // the entries are told again
				} else if err != nil {
					return err // and so they are
				}
			}
			for _, entry := range entries {
				_ = entry.Ack() // without a connection it is told again
			}
			return nil
		})
	}
	return group.Wait()
}

// makeReady publishes the ready message of a lane, or looks after the one that is there.
func (c *caretaker) makeReady(ctx context.Context, lane protocol.Lane) error {
	made, err := c.store.SurelyReady(ctx, c.pool, lane)
	if made || err != nil {
		return err
	}
	ready, err := c.store.Next(ctx, c.store.Fleet.ReadySubject(c.pool, lane.Hash()), 0)
	if err != nil || ready == nil {
		return err // it was there, so its holder looks into the mailbox
	}
	return c.inspect(ctx, lane, ready, nil)
}

// inspect looks after a ready message that is there. One that was delivered, while nobody holds the
// lane, may never be delivered again: then it is replaced, and looked at once more. consumer is the
// pool's, of a review, which believes no claim; else nil.
func (c *caretaker) inspect(ctx context.Context, lane protocol.Lane, ready *message, consumer *jetstream.ConsumerInfo) error {
	claim, err := c.store.Claim(ctx, c.pool, lane.Hash())
	if err != nil {
		return err
	}
	if claim != nil && claim.Life != "" {
		if claim.Ready == ready.Sequence && consumer == nil {
			return nil // its holder looks after it, or whoever finds that expired
		}
		// The ready message is about to be removed, or was brought back, maybe with the claim:
		// whose it is looks whether it holds the lane, and removes the claim if not.
		_ = c.store.NC.Publish(c.store.Fleet.AskSubject(c.pool, lane.Hash()), nil)
		return errOnItsWay
	}
	if consumer == nil {
		consumer, err = c.store.Consumer(ctx, c.pool)
	}
	if err != nil || consumer == nil || consumer.Delivered.Stream < ready.Sequence {
		return err
	}
	if consumer.TimeStamp.Sub(ready.Time) >= 2*consumer.Config.AckWait {
		c.holder.replaceReady(ctx, lane)
	}
	return errOnItsWay
}

// errOnItsWay says that a lane is looked at again in a while: its ready message was delivered, and
// it is not claimed yet.
var errOnItsWay = errors.New("the ready message is on its way to a worker")

// laneOf is the lane that an entry may need to be ready; "" for marks of those who hold it, and for
// what no worker can read.
func (c *caretaker) laneOf(entry jetstream.Msg) (lane protocol.Lane) {
	what := c.store.Fleet.ParseMailboxSubject(entry.Subject())
	if what.Kind != protocol.EntryCall && what.Kind != protocol.EntryCancel {
		return ""
	}
	lane = Named(entry.Headers())
	if lane.Hash() != c.store.Fleet.LaneOfSubject(entry.Subject()) {
		c.logger.Error("mailbox entry is malformed: nobody takes its lane for it",
			slog.String("subject", entry.Subject()), slog.String("header", protocol.HeaderLane))
		return ""
	}
	return lane
}
