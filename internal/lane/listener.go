package lane

import (
	"context"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// copies passes the republished messages of all mailboxes to their listeners, in one goroutine:
// with one for each subscription, a lane that waits would take its stack.
type copies struct {
	nc       *nats.Conn
	messages chan *nats.Msg

	mu        sync.Mutex
	listeners map[*nats.Subscription]*listener
}

// maxCopied bounds the messages that wait for the goroutine. What has no room is dropped for its
// subscription, which the listener notices.
const maxCopied = 16 << 10

func newCopies(nc *nats.Conn) *copies {
	return &copies{nc: nc, messages: make(chan *nats.Msg, maxCopied), listeners: map[*nats.Subscription]*listener{}}
}

func (c *copies) subscribe(subject string, to *listener) (*nats.Subscription, error) {
	c.mu.Lock() // so that the listener is known before the first message is passed on
	defer c.mu.Unlock()
	subscription, err := c.nc.ChanSubscribe(subject, c.messages)
	if err == nil {
		c.listeners[subscription] = to
	}
	return subscription, err
}

func (c *copies) unsubscribe(subscription *nats.Subscription) {
	_ = subscription.Unsubscribe() // fails only when the connection is closed
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.listeners, subscription)
}

// run passes messages on until ctx ends.
func (c *copies) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case msg := <-c.messages:
			c.mu.Lock()
			to := c.listeners[msg.Sub]
			c.mu.Unlock()
			if to != nil {
				to.receive(msg)
			}
		}
	}
}

// listener gets a copy of each mailbox message that is stored while it is subscribed, because the
// server republishes them. If every copy arrives, in order, the copies replace reads; otherwise
// they only trigger reads. One goroutine uses it; NATS calls receive from another.
type listener struct {
	store  *store.Store
	all    *copies
	pool   protocol.Pool
	hash   wire.LaneHash
	wake   chan struct{}
	unpark func() // ends the wait of a lane without a goroutine

	subscription *nats.Subscription
	reconnects   uint64 // of the connection, at the time of subscribing
	listed       bool   // cancel requests older than the subscription were listed

	mu          sync.Mutex
	copies      []*message // not drained yet, bounded by maxCopies and windowBytes
	copiedBytes int
	lost        bool              // a copy had no room, or could not be decoded
	cancels     []protocol.CallID // calls to cancel
}

// maxCopies bounds the buffered copies; further messages are read from the stream.
const maxCopies = 4 * window

func (e *listener) listens() bool { return e.subscription != nil }

// subscribe reports false without a connection.
func (e *listener) subscribe() bool {
	e.reconnects, e.listed = e.store.NC.Stats().Reconnects, false
	subscription, err := e.all.subscribe(wire.StoredFilter(e.store.Fleet, e.pool, e.hash), e)
	if err == nil {
		e.subscription = subscription
	}
	return err == nil
}

func (e *listener) close() {
	if e.listens() {
		e.all.unsubscribe(e.subscription)
		e.subscription = nil
	}
}

func (e *listener) receive(msg *nats.Msg) {
	copied, err := store.FromCopy(msg)
	e.mu.Lock()
	switch {
	case err != nil, e.lost, len(e.copies) >= maxCopies, e.copiedBytes > windowBytes:
		e.lost, e.copies, e.copiedBytes = true, nil, 0 // the stream has them
	default:
		e.copies = append(e.copies, copied)
		e.copiedBytes += len(copied.Data)
	}
	if entry := wire.ParseMailboxSubject(e.store.Fleet, msg.Subject); entry.Kind == wire.EntryCancel {
		e.cancels = append(e.cancels, entry.CallID)
	}
	e.mu.Unlock()
	e.notify()
}

// notify wakes the lane from any goroutine: there may be something to read.
func (e *listener) notify() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
	e.unpark()
}

func (e *listener) drainCancels() []protocol.CallID {
	e.mu.Lock()
	defer e.mu.Unlock()
	cancels := e.cancels
	e.cancels = nil
	return cancels
}

// drain returns the copies from a sequence on, or reports that the stream has to be queried
// instead.
func (e *listener) drain(from uint64) (news []*message, ask bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	news = slices.DeleteFunc(e.copies, func(msg *message) bool { return msg.Sequence < from })
	if len(news) == 0 || e.store.Consistency().RepublishesAll() {
		e.copies, e.copiedBytes = nil, 0
		return news, false
	}
	e.copies, e.copiedBytes = news, 0
	for _, msg := range news {
		e.copiedBytes += len(msg.Data)
	}
	return nil, true
}

// isComplete reports whether every stored message reaches this listener.
func (e *listener) isComplete() bool {
	if !e.listens() || e.store.NC.Stats().Reconnects != e.reconnects {
		return false
	}
	dropped, err := e.subscription.Dropped()
	return err == nil && dropped == 0
}

// checkComplete reports whether no copy is lost. It closes a subscription that misses messages.
func (e *listener) checkComplete() bool {
	if !e.isComplete() {
		e.reset()
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.lost
}

// seesAllCancels reports whether every stored cancel request has been seen.
func (e *listener) seesAllCancels() bool { return e.listed && e.isComplete() }

// clearLost clears the loss: the stream is queried next, and has every message stored until now.
func (e *listener) clearLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		e.lost, e.copies, e.copiedBytes = false, nil, 0
	}
}

func (e *listener) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copies, e.copiedBytes, e.lost = nil, 0, false
	e.close()
}
