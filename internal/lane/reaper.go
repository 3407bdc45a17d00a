package lane

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/natsio"
	"github.com/toolfleet/toolfleet/internal/system/pause"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// reaper looks after lanes of a pool that no worker holds. Every worker has one.
//
// Entries: a publisher that crashes between appending a call and publishing the ready message, or
// whose ready message is lost, leaves a mailbox without a ready message. A durable consumer, shared
// by all workers of the pool, delivers each entry once, and the worker that gets it tries to
// publish the ready message. Once is enough: if the stream refuses it, the lane is ready or held,
// and its holder looks into the mailbox after it has deleted the ready message. Settled entries are
// deleted and never delivered, and nothing is fetched while no entry is older than reapAfter and no
// call's time has come. So only calls that wait long in their lanes cost anything.
//
// Ready messages: a single server that is killed may restore deleted ready messages and claims. The
// consumer never delivers a ready message that it has settled, and the stream refuses others for
// that lane. So after connecting each worker inspects all ready messages, twice: the first time
// makes owners delete claims on lanes that they do not hold.
//
// Calls that are due or cancelled while all slots of all workers are used: see dueLane. A holder
// that only settles has nothing else to do.
type reaper struct {
	holder   *Holder
	consumer jetstream.Consumer // delivers entries; opened when it is needed
	passed   skippedEntries

	connections uint64 // for which ready messages were inspected
	reviews     int    // remaining inspections
	nextReview  time.Time

	cursor uint64 // the next sequence to read in search of due calls
	due    map[wire.LaneHash]dueLane
}

const (
	// reapPeriod is how often a worker looks for entries that wait.
	reapPeriod = time.Second
	// reapAfter is the age at which an entry is looked after: younger ones are about to be run, or
	// to get their ready message.
	reapAfter = 500 * time.Millisecond
	// reapBatch is the number of entries fetched at once.
	reapBatch = 256
	// reapParallel is the number of lanes that are made ready concurrently.
	reapParallel = 16
	// heldWait is how long a holder may take to answer that it holds a lane.
	heldWait = 250 * time.Millisecond
	// reviews is how often ready messages are inspected after each connection.
	reviews = 2
)

func (c *reaper) run(ctx context.Context) {
	every := func(period time.Duration, do func(context.Context) error) func() {
		return func() {
			for ok := true; ok; ok = pause.For(ctx, period) {
				if err := do(ctx); err != nil { // until the next round
					c.holder.options.Logger.DebugContext(ctx, "waiting lanes cannot be checked", slog.Any("error", err))
				}
			}
		}
	}
	var both sync.WaitGroup
	both.Go(every(reapPeriod, func(ctx context.Context) error { return errors.Join(c.reviewReady(ctx), c.reapEntries(ctx)) }))
	both.Go(every(duePeriod, c.answerDue))
	both.Wait()
}

func (c *reaper) reapEntries(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			c.consumer = nil // it may have been deleted
		}
	}()
	if works, err := c.hasWork(ctx); err != nil || !works {
		return err
	}
	if c.consumer == nil {
		opening, cancel := context.WithTimeout(ctx, store.OpTimeout)
		defer cancel()
		if c.consumer, err = natsio.EnsureReaper(opening, c.holder.store.JS, c.holder.options.Fleet, c.holder.options.Pool); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		batch, err := c.consumer.FetchNoWait(reapBatch)
		if err != nil {
			return err
		}
		var entries []jetstream.Msg
		n := 0
		var moving errgroup.Group
		moving.SetLimit(reapParallel)
		for entry := range batch.Messages() {
			n++
			what := wire.ParseMailboxSubject(c.holder.options.Fleet, entry.Subject())
			if what.Kind != wire.EntryLater && what.Kind != wire.EntryLaterCancel {
				entries = append(entries, entry)
				continue
			}
			moving.Go(func() error {
				c.move(ctx, entry, what)
				return nil
			})
		}
		_ = moving.Wait() // what cannot be moved is delivered again
		if err := errors.Join(batch.Error(), c.makeAllReady(ctx, entries)); err != nil || n < reapBatch {
			return err
		}
		if len(entries) == 0 {
			continue
		}
		if last, err := entries[len(entries)-1].Metadata(); err != nil || c.holder.clock.Age(last.Timestamp) < reapAfter {
			return err
		}
	}
	return nil
}

// makeAllReady makes the lanes of some entries ready, each once, and acknowledges the entries of
// the lanes where that succeeded; the others are delivered again.
func (c *reaper) makeAllReady(ctx context.Context, entries []jetstream.Msg) error {
	byLane := map[protocol.Lane][]jetstream.Msg{}
	for _, entry := range entries {
		lane := c.laneOf(entry)
		byLane[lane] = append(byLane[lane], entry)
	}
	var group errgroup.Group
	group.SetLimit(reapParallel)
	for lane, entries := range byLane {
		group.Go(func() error {
			if lane != "" {
				hasTicket, err := c.ticketOf(ctx, lane, entries)
				if err == nil && !hasTicket {
					err = c.makeReady(ctx, lane, lastOf(entries))
				}
				if errors.Is(err, errOnItsWay) || errors.Is(err, store.ErrBehind) {
					return nil
				}
				if err != nil {
					return err
				}
			}
			for _, entry := range entries {
				_ = entry.Ack() // without a connection it is delivered again
			}
			return nil
		})
	}
	return group.Wait()
}

// laneOf is the lane that may have to be made ready for an entry; "" for marks of holders and for
// malformed entries.
func (c *reaper) laneOf(entry jetstream.Msg) (lane protocol.Lane) {
	fleet := c.holder.options.Fleet
	what := wire.ParseMailboxSubject(fleet, entry.Subject())
	if what.Kind != wire.EntryCall && what.Kind != wire.EntryCancel {
		return ""
	}
	lane = wire.LaneOfHeader(entry.Headers().Get(wire.HeaderLane))
	if wire.HashLane(lane) != wire.LaneOfSubject(fleet, entry.Subject()) {
		c.holder.options.Logger.Error("mailbox entry is malformed: it makes no lane ready",
			slog.String("subject", entry.Subject()), slog.String("header", wire.HeaderLane))
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

// makeReady publishes the ready message of a lane with an entry, or inspects the one that was
// stored when the entry was.
func (c *reaper) makeReady(ctx context.Context, lane protocol.Lane, entry uint64) error {
	s, pool := c.holder.store, c.holder.options.Pool
	made, err := s.MakeReady(ctx, pool, lane)
	if made || err != nil {
		return err
	}
	ready, err := s.Consistency().Refusing(ctx, pool, wire.HashLane(lane), entry)
	if err != nil || ready == nil {
		return err // it was stored, so its holder looks into the mailbox
	}
	return c.inspect(ctx, lane, ready, nil)
}

func (c *reaper) reviewReady(ctx context.Context) error {
	s, o, lease := c.holder.store, &c.holder.options, c.holder.lease
	if n := s.NC.Stats().Reconnects + 1; n != c.connections {
		c.connections, c.reviews, c.nextReview = n, reviews, time.Now().Add(2*lease) // current deliveries have arrived by then
		c.passed = skippedEntries{}                                                  // a server that was killed may have entries again
	}
	if c.reviews == 0 || time.Now().Before(c.nextReview) || !s.Consistency().MayRestoreDeleted() {
		return nil
	}
	consumer, err := s.Consumer(ctx, o.Pool)
	if err != nil || consumer == nil {
		return err
	}
	for seq := uint64(0); ; {
		ready, err := s.Next(ctx, wire.ReadySubject(o.Fleet, o.Pool, "*"), seq)
		if err != nil {
			return err
		}
		if ready == nil || ready.Sequence > consumer.Delivered.Stream {
			break
		}
		seq = ready.Sequence + 1
		if lane := wire.LaneOfHeader(ready.Header.Get(wire.HeaderLane)); wire.HashLane(lane) == wire.LaneOfSubject(o.Fleet, ready.Subject) {
			if err := c.inspect(ctx, lane, ready, consumer); err != nil && !errors.Is(err, errOnItsWay) {
				return err
			}
		}
	}
	c.reviews--
	c.nextReview = time.Now().Add(lease)
	return nil
}

// errOnItsWay says that a lane has to be inspected again later: its ready message was delivered,
// and the lane is not claimed yet.
var errOnItsWay = errors.New("the ready message is on its way to a worker")

// inspect looks after a stored ready message. If it was delivered while no worker holds the lane,
// it may never be delivered again: then it is replaced, and inspected once more. consumer is the
// pool's during a review, which does not trust claims; else nil.
func (c *reaper) inspect(ctx context.Context, lane protocol.Lane, ready *message, consumer *jetstream.ConsumerInfo) error {
	s, pool := c.holder.store, c.holder.options.Pool
	claim, err := s.Claim(ctx, pool, wire.HashLane(lane))
	if err != nil {
		return err
	}
	if claim != nil && claim.Incarnation != "" {
		if claim.Ready == ready.Sequence && consumer == nil && c.isHeld(ctx, claim) {
			return nil // its holder looks after it, or the worker that expires that
		}
		// The ready message is about to be removed, or was brought back, maybe with the claim:
		// whose it is looks whether it holds the lane, and removes the claim if not.
		_ = s.NC.Publish(wire.AskSubject(s.Fleet, pool, wire.HashLane(lane)), nil)
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

// isHeld reports whether the incarnation that a claim names answers that it holds the lane, or is
// expired, so that others take the lane over. An incarnation that is alive and does not hold the
// lane deletes the claim.
func (c *reaper) isHeld(ctx context.Context, claim *store.StoredClaim) bool {
	s, pool := c.holder.store, c.holder.options.Pool
	if c.holder.peers.isExpired(claim.Incarnation) { // one without a record is noticed by this
		return true
	}
	question := nats.NewMsg(wire.AskSubject(s.Fleet, pool, wire.HashLane(claim.Lane)))
	question.Header.Set(wire.HeaderIncarnation, string(claim.Incarnation))
	_, err := s.Request(ctx, heldWait, question)
	return err == nil
}

// claimIdle claims a lane without a slot, reads its mailbox, and calls do, which must hand the lane
// over. It reports false when the lane is not ready or cannot be claimed: then its holder looks
// after it, if it has one.
func (h *Holder) claimIdle(ctx context.Context, lane protocol.Lane, do func(*heldLane)) (bool, error) {
	ready, err := h.storedReady(ctx, wire.HashLane(lane))
	if err == nil && ready == nil && h.readyOfTicket(ctx, wire.HashLane(lane)) {
		ready, err = h.storedReady(ctx, wire.HashLane(lane))
	}
	if err != nil || ready == nil {
		return false, err // without a ready message the reaper makes one
	}
	l := h.beginIdle(ready)
	if l == nil {
		return false, nil
	}
	defer h.group.Done()
	defer h.remove(l)
	defer l.cancel(nil)
	defer l.mail.close()
	if err := h.acquire(l.ctx, l.claim); err != nil { //nolint:contextcheck // the lane has its own
		l.cancel(nil)
		h.remove(l)
		h.removeStaleClaimAfter(l, err) //nolint:contextcheck // the lane has its own
		return false, nil
	}
	l.decodeReady()
	if err := l.readMailbox(); err != nil {
		l.handOver(false, l.redeliver)
		return false, err
	}
	do(l)
	return true, nil
}

// beginIdle begins to hold a lane without a slot; nil when it is held here, or the holder drains.
func (h *Holder) beginIdle(ready *readyMessage) *heldLane {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.incarnation == nil || h.draining || h.held[ready.hash] != nil {
		return nil
	}
	l := newHeldLane(h, h.incarnation, ready)
	l.slots.free, l.slots.unspent = 0, 0
	l.claim.Ready = 0 // a worker that gets the ready message tries again in a moment
	h.held[l.hash] = l
	h.group.Add(1)
	return l
}

// storedReady reads the ready message of a lane; nil when there is none that names the lane.
func (h *Holder) storedReady(ctx context.Context, hash wire.LaneHash) (*readyMessage, error) {
	found, err := h.store.Ready(ctx, h.options.Pool, hash)
	if err != nil || found == nil {
		return nil, err
	}
	lane := wire.LaneOfHeader(found.Header.Get(wire.HeaderLane))
	if wire.HashLane(lane) != hash {
		return nil, nil //nolint:nilnil // none that names the lane is an answer
	}
	return &readyMessage{
		seq: found.Sequence, header: found.Header, body: found.Data, stored: found.Time, lane: lane, hash: hash,
	}, nil
}

// replaceReady replaces a lane's ready message that was delivered and led to no claim: a single
// server that is killed may restore a deleted one, which the consumer never delivers. The lane is
// claimed meanwhile, so no other worker acts on it. A ready message with an unsettled call of its
// own is left alone.
func (h *Holder) replaceReady(ctx context.Context, lane protocol.Lane) {
	consumer, err := h.store.Consumer(ctx, h.options.Pool)
	if err != nil || consumer == nil {
		return
	}
	_, _ = h.claimIdle(ctx, lane, func(l *heldLane) { // the lane has its own context; it is tried again
		inline := l.isPinned()
		if e := l.schedule.Find(protocol.CallID(l.ready.header.Get(wire.HeaderCall))); inline && e != nil {
			known, err := l.isSettled(e)
			inline = err != nil || !known
		}
		if l.ready.seq > consumer.Delivered.Stream || inline || !l.isFresh() ||
			h.store.Remove(l.ctx, l.ready.seq) != nil {
			l.handOver(false, l.redeliver)
			return
		}
		l.handOver(false, func(ctx context.Context) error {
			_, err := h.store.MakeReady(ctx, h.options.Pool, lane)
			return err
		})
	})
}

const (
	// duePeriod is how often a worker without a free slot looks for calls whose time is over.
	duePeriod = 250 * time.Millisecond
	// dueAgain is when a lane is checked again that could not be claimed, or still has such calls.
	dueAgain = time.Second
	// maxDue bounds the remembered lanes; further messages are read later.
	maxDue = 8192
	// dueReads bounds the messages read in one round.
	dueReads = 256
)

// dueLane is a lane with a call that may have to be answered at a time. Calls that expire or are
// cancelled are answered also in lanes that no worker holds because all slots are used. A worker
// without a free slot reads the pool's messages, each once, and remembers which lanes have such
// calls and when. Then it claims the lane, answers the calls that need no slot, and hands the lane
// over.
type dueLane struct {
	lane protocol.Lane
	at   time.Time
}

// answerDue reads new messages, and answers the calls that are due.
func (c *reaper) answerDue(ctx context.Context) error {
	switch settles := c.holder.options.Settles; {
	case len(settles) > 0:
		for _, lane := range settles {
			c.due[wire.HashLane(lane)] = dueLane{lane: lane}
		}
	case c.holder.slots.available() > 0:
		return nil // nothing waits
	default:
		if err := c.readDue(ctx); err != nil {
			return err
		}
	}
	for hash, due := range c.due {
		if time.Now().Before(due.at) {
			continue
		}
		next, err := c.answerLane(ctx, due.lane)
		if err != nil {
			return err
		}
		if next.IsZero() {
			delete(c.due, hash)
			continue
		}
		c.due[hash] = dueLane{lane: due.lane, at: next}
	}
	return nil
}

func (c *reaper) readDue(ctx context.Context) error {
	filter := wire.PoolFilter(c.holder.options.Fleet, c.holder.options.Pool)
	for n := 0; n < dueReads && len(c.due) < maxDue; n++ {
		msg, err := c.holder.store.Next(ctx, filter, c.cursor)
		if err != nil || msg == nil {
			return err
		}
		c.cursor = msg.Sequence + 1
		c.noteDue(msg)
	}
	return nil
}

// noteDue notes when the call of a message, or the call that it cancels, has to be answered.
func (c *reaper) noteDue(msg *message) {
	lane := wire.LaneOfHeader(msg.Header.Get(wire.HeaderLane))
	at := time.Now()
	isCancelled := msg.Header.Get(wire.HeaderCancelled) != "" // while it waited for its time
	if !isCancelled && wire.ParseMailboxSubject(c.holder.options.Fleet, msg.Subject).Kind != wire.EntryCancel {
		call, err := wire.DecodeCall(msg.Data)
		if err != nil {
			return // no call, or one that the lane's holder answers
		}
		e := core.Entry{Call: call}
		after, bounded := e.DueAfter()
		if !bounded {
			return
		}
		lane, at = call.Lane(), at.Add(after-c.holder.clock.Age(msg.Time))
	}
	if before, known := c.due[wire.HashLane(lane)]; lane != "" && (!known || at.Before(before.at)) {
		c.due[wire.HashLane(lane)] = dueLane{lane: lane, at: at}
	}
}

// answerLane answers the due calls of a lane, and returns when to check it again; zero is never.
func (c *reaper) answerLane(ctx context.Context, lane protocol.Lane) (again time.Time, err error) {
	again = time.Now().Add(dueAgain) // in case its holder loses the lane
	visited, err := c.holder.claimIdle(ctx, lane, func(l *heldLane) {
		l.control.hasCancels = true
		l.refuseDue()
		if len(c.holder.options.Settles) > 0 {
			l.finishSettled()
		}
		l.retry(sweepTrouble, l.sweep)
		if l.schedule.Len() > 0 || l.isPinned() || !l.tryRelease() {
			l.handOver(false, l.redeliver) // to its old place in the queue
		}
		switch {
		case l.control.nextDue.After(again):
			again = l.control.nextDue
		case l.control.nextDue.IsZero() && l.mail.caughtUp:
			again = time.Time{}
		}
	})
	if err == nil && !visited && c.isEmpty(ctx, lane) {
		return time.Time{}, nil
	}
	return again, err
}

// finishSettled removes the calls that have a result.
func (l *heldLane) finishSettled() {
	for _, e := range slices.Clone(l.schedule.Entries()) {
		if known, err := l.isSettled(e); err == nil && known {
			l.onAlreadySettled(e)
			l.finishEntry(e)
		}
	}
}

func (c *reaper) isEmpty(ctx context.Context, lane protocol.Lane) bool {
	s, pool := c.holder.store, c.holder.options.Pool
	ready, err := s.Ready(ctx, pool, wire.HashLane(lane))
	if err != nil || ready != nil {
		return false
	}
	entry, err := s.Next(ctx, wire.MailboxFilter(s.Fleet, pool, wire.HashLane(lane)), 0)
	return err == nil && entry == nil
}
