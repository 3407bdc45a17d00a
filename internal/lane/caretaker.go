package lane

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/pause"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// caretaker looks after the lanes of a pool that nobody holds. Every worker has one.
//
// Entries: a publisher that is lost between appending a call and publishing the ready message, or
// whose ready message gets lost, leaves a mailbox to which nobody comes.
// A durable consumer, which all workers of a pool share, tells each entry once, and the worker that
// is told makes one attempt to publish the ready message. One is enough for ever: if it is refused,
// the lane is ready or held, and whoever lets go of it looks into the mailbox after the ready
// message is removed. What is settled is deleted and never told; so this costs nothing but for what
// waits longer.
//
// Ready messages: a server on its own that is killed may bring back one that was removed, and a
// claim. Nobody is given a ready message that the consumer has settled, and it refuses all others.
// So each worker looks after all of them after it has connected, twice: the first time has owners
// remove the claims that they do not hold.
//
// Calls that are due, or cancelled, while all slots of all workers are taken: see due.go.
type caretaker struct {
	holder   *Holder
	consumer jetstream.Consumer // tells entries; opened when it is needed

	connections uint64 // for which ready messages were looked at
	reviews     int    // of them that are left
	nextReview  time.Time

	cursor uint64 // what is before was read in search of calls that are due
	due    map[protocol.LaneHash]dueLane
}

const (
	// carePeriod is how often a worker looks after what is new.
	carePeriod = time.Second
	// careBatch is how many entries are taken at once.
	careBatch = 256
	// careAtOnce is how many lanes are made ready at the same time.
	careAtOnce = 16
	// heldWait is how long a holder may take to say that it holds a lane.
	heldWait = 250 * time.Millisecond
	// reviews is how often ready messages are looked at after each connection.
	reviews = 2
)

func (c *caretaker) run(ctx context.Context) {
	every := func(period time.Duration, do func(context.Context) error) func() {
		return func() {
			for ok := true; ok; ok = pause.For(ctx, period) {
				if err := do(ctx); err != nil { // until the next round
					c.holder.options.Logger.DebugContext(ctx, "waiting lanes are not looked after", slog.Any("error", err))
				}
			}
		}
	}
	var both sync.WaitGroup
	both.Go(every(carePeriod, func(ctx context.Context) error { return errors.Join(c.review(ctx), c.entries(ctx)) }))
	both.Go(every(duePeriod, c.answerDue))
	both.Wait()
}

func (c *caretaker) entries(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			c.consumer = nil // somebody may have deleted it
		}
	}()
	if c.consumer == nil {
		opening, cancel := context.WithTimeout(ctx, store.OpTimeout)
		defer cancel()
		if c.consumer, err = natsio.EnsureCare(opening, c.holder.store.JS, c.holder.options.Fleet, c.holder.options.Pool); err != nil {
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
// for which that went well; the others are told again.
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
				err := c.makeReady(ctx, lane, lastOf(entries))
				if errors.Is(err, errOnItsWay) || errors.Is(err, store.ErrBehind) {
					return nil
				}
				if err != nil {
					return err
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

// laneOf is the lane that an entry may need to be ready; "" for marks of those who hold it, and for
// what no worker can read.
func (c *caretaker) laneOf(entry jetstream.Msg) (lane protocol.Lane) {
	fleet := c.holder.options.Fleet
	what := fleet.ParseMailboxSubject(entry.Subject())
	if what.Kind != protocol.EntryCall && what.Kind != protocol.EntryCancel {
		return ""
	}
	lane = protocol.LaneOfHeader(entry.Headers().Get(protocol.HeaderLane))
	if lane.Hash() != fleet.LaneOfSubject(entry.Subject()) {
		c.holder.options.Logger.Error("mailbox entry is malformed: nobody takes its lane for it",
			slog.String("subject", entry.Subject()), slog.String("header", protocol.HeaderLane))
		return ""
	}
	return lane
}

// lastOf is the last sequence of some entries.
func lastOf(entries []jetstream.Msg) (seq uint64) {
	for _, entry := range entries {
		if meta, err := entry.Metadata(); err == nil {
			seq = max(seq, meta.Sequence.Stream)
		}
	}
	return seq
}

// makeReady publishes the ready message of a lane with an entry, or looks after the one that was
// there when the entry was stored.
func (c *caretaker) makeReady(ctx context.Context, lane protocol.Lane, entry uint64) error {
	s, pool := c.holder.store, c.holder.options.Pool
	made, err := s.MakeReady(ctx, pool, lane)
	if made || err != nil {
		return err
	}
	ready, err := s.Refusing(ctx, pool, lane.Hash(), entry)
	if err != nil || ready == nil {
		return err // it was there, so its holder looks into the mailbox
	}
	return c.inspect(ctx, lane, ready, nil)
}

func (c *caretaker) review(ctx context.Context) error {
	s, o, lease := c.holder.store, &c.holder.options, c.holder.lease
	if n := s.NC.Stats().Reconnects + 1; n != c.connections {
		c.connections, c.reviews, c.nextReview = n, reviews, time.Now().Add(2*lease) // what is on its way has come by then
	}
	if c.reviews == 0 || time.Now().Before(c.nextReview) || !s.Consistency().BringsBack() {
		return nil
	}
	consumer, err := s.Consumer(ctx, o.Pool)
	if err != nil || consumer == nil {
		return err
	}
	for seq := uint64(0); ; {
		ready, err := s.Next(ctx, o.Fleet.ReadyFilter(o.Pool), seq)
		if err != nil {
			return err
		}
		if ready == nil || ready.Sequence > consumer.Delivered.Stream {
			break
		}
		seq = ready.Sequence + 1
		if lane := protocol.LaneOfHeader(ready.Header.Get(protocol.HeaderLane)); lane.Hash() == o.Fleet.LaneOfSubject(ready.Subject) {
			if err := c.inspect(ctx, lane, ready, consumer); err != nil && !errors.Is(err, errOnItsWay) {
				return err
			}
		}
	}
	c.reviews--
	c.nextReview = time.Now().Add(lease)
	return nil
}

// errOnItsWay says that a lane is looked at again in a while: its ready message was delivered, and
// it is not claimed yet.
var errOnItsWay = errors.New("the ready message is on its way to a worker")

// inspect looks after a ready message that is there. One that was delivered, while nobody holds the
// lane, may never be delivered again: then it is replaced, and looked at once more. consumer is the
// pool's, of a review, which believes no claim; else nil.
func (c *caretaker) inspect(ctx context.Context, lane protocol.Lane, ready *message, consumer *jetstream.ConsumerInfo) error {
	s, pool := c.holder.store, c.holder.options.Pool
	claim, err := s.Claim(ctx, pool, lane.Hash())
	if err != nil {
		return err
	}
	if claim != nil && claim.Life != "" {
		if claim.Ready == ready.Sequence && consumer == nil && c.isHeld(ctx, claim) {
			return nil // its holder looks after it, or whoever finds that expired
		}
		// The ready message is about to be removed, or was brought back, maybe with the claim:
		// whose it is looks whether it holds the lane, and removes the claim if not.
		_ = s.NC.Publish(s.Fleet.AskSubject(pool, lane.Hash()), nil)
		return errOnItsWay
	}
	if consumer == nil {
		consumer, err = s.Consumer(ctx, pool)
	}
	if err != nil || consumer == nil || consumer.Delivered.Stream < ready.Sequence {
		return err
	}
	if consumer.TimeStamp.Sub(ready.Time) >= 2*consumer.Config.AckWait {
		c.holder.replaceReady(ctx, lane)
	}
	return errOnItsWay
}

// isHeld reports whether the life that a claim names says that it holds the lane, or is expired:
// then others take the lane over. One that lives and does not hold it lets go of the claim.
func (c *caretaker) isHeld(ctx context.Context, claim *store.StoredClaim) bool {
	s, pool := c.holder.store, c.holder.options.Pool
	if c.holder.peers.isExpired(claim.Life) { // one without a record is noticed by this
		return true
	}
	question := nats.NewMsg(s.Fleet.AskSubject(pool, claim.Lane.Hash()))
	question.Header.Set(protocol.HeaderLife, string(claim.Life))
	_, err := s.Request(ctx, heldWait, question)
	return err == nil
}
