package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// window bounds the calls of a lane that are in hand; windowBytes their bodies.
const (
	window      = 256
	windowBytes = 32 << 20
)

// readMailbox reads entries into the schedule until the mailbox is empty or the window is full. The
// first time it also checks that the ready message is stored; if not, the error wraps
// [store.ErrNotReady].
func (l *heldLane) readMailbox() error {
	if l.garbage.needsSweep() {
		if err := l.sweep(); err != nil {
			return err
		}
	}
	if l.control.queried.Load() || time.Since(l.mail.queriedAt) >= readPeriod { // a republished message may be lost
		l.mail.refresh()
	}
	if err := l.openLane(); err != nil {
		return err
	}
	for !l.isFull() {
		msg, err := l.mail.next(l.ctx)
		if err != nil {
			return err
		}
		if inline := l.ready.call; inline != nil && (msg == nil || msg.Sequence > l.ready.seq) {
			l.ready.call = nil
			l.enqueue(inline) // if that fails it was sent twice, and the mailbox entry is the call
		}
		if msg == nil {
			clear(l.control.cancelledUnread) // their calls are settled
			l.mail.caughtUp = true
			break
		}
		l.accept(msg)
	}
	return l.readControl()
}

func (l *heldLane) isFull() bool {
	return l.schedule.Len() >= window && !l.schedule.Stuck() || l.schedule.Bytes() >= windowBytes
}

// openLane finds out, once, what was stored before the claim: whether the ready message is there,
// and which entries the mailbox has. Meanwhile it looks up the result of the ready message's call.
func (l *heldLane) openLane() error {
	if l.mail.opened {
		return nil
	}
	if l.ready.call != nil && !l.claim.Interrupted && l.lookups.isSafe(l.ready.call) {
		l.lookups.request(l.ready.call.Call)
	}
	found, err := l.holder.store.Consistency().OpenLane(l.ctx, l.holder.options.Pool, l.hash, l.ready.seq, l.claim.epoch.Load())
	if err != nil {
		return err
	}
	l.mail.opened, l.mail.snapshot, l.mail.oneByOne = true, found.Snapshot, !found.Read
	if found.Read {
		l.mail.push(found.Entries)
	}
	if found.Floor > 0 {
		l.garbage.discard("", found.Floor)
	}
	return nil
}

func (l *heldLane) decodeReady() {
	if len(l.ready.body) == 0 {
		return
	}
	e, err := l.entry(l.ready.header, l.ready.body, l.ready.stored)
	if err != nil {
		l.holder.options.Logger.WarnContext(l.ctx, "ready message holds a call that can neither be run nor answered",
			slog.String("lane", string(l.lane)), slog.Any("error", err))
		return
	}
	e.Seq, e.Inline = l.ready.seq, true
	l.ready.call = e
}

// isPinned reports whether the ready message must stay stored, because its own call is not settled.
func (l *heldLane) isPinned() bool {
	return l.ready.call != nil || l.schedule.Pinned()
}

// accept handles one message of the mailbox.
func (l *heldLane) accept(msg *message) {
	what := wire.ParseMailboxSubject(l.holder.store.Fleet, msg.Subject)
	switch what.Kind {
	case wire.EntryCall:
		e, err := l.entry(msg.Header, msg.Data, msg.Time)
		if err != nil {
			l.discardUnread(msg, err)
			return
		}
		e.Seq = msg.Sequence
		if l.garbage.settled.has(e.Call.ID) {
			l.onAlreadySettled(e)
			l.garbage.discard(e.Call.ID, e.Seq)
			return
		}
		if !l.enqueue(e) && l.schedule.Find(e.Call.ID).Seq != e.Seq { // sent twice; the scheduled one is the call
			l.garbage.discard(what.CallID, msg.Sequence)
		}
	case wire.EntryCancel, wire.EntryStart:
		e := l.schedule.Find(what.CallID)
		if e == nil { // its call is settled
			l.garbage.discard(what.CallID, msg.Sequence)
			return
		}
		l.garbage.marks[what.CallID] = append(l.garbage.marks[what.CallID], msg.Sequence)
		if what.Kind == wire.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.Running {
			e.Starts, e.Marked = max(e.Starts, what.Start), true
		}
	case wire.EntryFloor: // of an earlier holder, or our own
		l.garbage.discard("", msg.Sequence)
	case wire.EntryPause: // it stays stored
		l.control.paused.Store(true)
	case wire.EntryUnknown, wire.EntryLater, wire.EntryLaterCancel: // none of a mailbox
		l.discardUnread(msg, errUnknownEntry)
	}
}

// entry decodes a stored call. An undecodable or untrusted call becomes an invalid entry, so that
// it still gets a result; without call and session id it is an error.
func (l *heldLane) entry(header nats.Header, body []byte, stored time.Time) (*core.Entry, error) {
	call, err := wire.DecodeCall(body)
	if err == nil && (call.Lane() != l.lane || call.Pool != l.holder.options.Pool) {
		err = fmt.Errorf("%w: it is of lane %s in pool %s", protocol.ErrInvalidCall, call.Lane(), call.Pool)
	}
	var signer *judge.Principal
	cancelled := header.Get(wire.HeaderCancelled) != "" // it does nothing, so it needs no signature
	if keys := l.holder.options.Keys; err == nil && keys != nil && !cancelled {
		enqueued := stored.Add(-call.Delay() - min(lateness(call, header), maxLate))
		var fault *protocol.Error
		if signer, fault = keys.Check(l.holder.options.Fleet, header.Get(wire.HeaderSigned), body, enqueued); fault != nil {
			err = fault
		}
	}
	if err == nil {
		e := &core.Entry{Call: call, Header: header, Accepted: stored.Add(-lateness(call, header)), Size: len(body), Signer: signer}
		e.Cancelled = cancelled
		if l.holder.options.Keys == nil { // with keys only signed fields count, and headers are not signed
			e.NoResult = l.knowsAllSince(wire.SeenOfHeader(header.Get(wire.HeaderSeen)))
		}
		return e, nil
	}
	id, idErr := protocol.ParseCallID(header.Get(wire.HeaderCall))
	session, sessionErr := protocol.ParseSessionID(header.Get(wire.HeaderSession))
	if unanswerable := errors.Join(idErr, sessionErr); unanswerable != nil {
		return nil, errors.Join(err, unanswerable)
	}
	whole := protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}
	call = &protocol.Call{ID: id, SessionID: session, Pool: l.holder.options.Pool, Resources: []protocol.Use{whole}}
	return &core.Entry{Call: call, Header: header, Accepted: stored, Invalid: err}, nil
}

// enqueue adds an entry to the schedule. A previous holder can have started it only if it was
// stored before the claim, and if every earlier call that it conflicts with turns out to have its
// result.
func (l *heldLane) enqueue(e *core.Entry) bool {
	if !l.schedule.Add(e) {
		return false
	}
	if _, cancelled := l.control.cancelledUnread[e.Call.ID]; cancelled {
		delete(l.control.cancelledUnread, e.Call.ID)
		l.cancelCall(e.Call.ID)
	}
	l.control.hasCancels = l.control.hasCancels || e.Cancelled
	e.MayHaveStarted = !l.mail.caughtUp && l.claim.Interrupted
	e.MayBeOld = l.mail.snapshot.MayBeOld(e.Seq)
	l.noteDue(e)
	l.holder.awaited.add(l, e.Missing)
	return true
}

// knowsAllSince reports whether a call that was first sent after seen can have a result only if
// this hold knows that it has settled the call.
func (l *heldLane) knowsAllSince(seen wire.Seen) bool {
	return seen.Epoch > 0 && seen.Epoch == l.claim.epoch.Load() && seen.Sequence >= l.garbage.settled.forgotten
}

func (l *heldLane) discardUnread(msg *message, why error) {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.Subject), slog.Any("error", why))
	l.garbage.discard("", msg.Sequence)
}

var errUnknownEntry = errors.New("unknown kind of mailbox entry")

// message is a stored message of a mailbox.
type message = jetstream.RawStreamMsg

// mailbox reads the mailbox of a held lane in stream order. It reads a single server's stream in
// one request. In a cluster it asks the leader, which has every acknowledged message, for one
// message at a time. With a subscription to republished messages it need not poll. One goroutine
// uses it.
type mailbox struct {
	listener

	opened   bool            // openLane has succeeded
	snapshot *store.Snapshot // which entries to trust; nil when all that was stored before the claim is read
	caughtUp bool            // later reads return only what was stored after the claim

	cursor    uint64     // the next sequence to read
	buffer    []*message // messages to return next, in order
	ended     bool       // the last query found nothing behind the buffer
	empty     bool       // all is read, and new messages are republished
	oneByOne  bool       // too many messages for one request
	queriedAt time.Time  // when the stream was last queried
}

func newMailbox(s *store.Store, all *copies, pool protocol.Pool, hash wire.LaneHash, unpark func()) *mailbox {
	return &mailbox{listener: listener{store: s, all: all, pool: pool, hash: hash, wake: make(chan struct{}, 1), unpark: unpark}}
}

// listen subscribes to republished messages, and reports whether it is subscribed. It may be called
// again.
func (m *mailbox) listen() bool {
	if !m.listens() && m.subscribe() {
		m.refresh() // earlier messages were not republished
	}
	return m.listens()
}

// isDeep reports whether so many messages wait that they are read one by one, while every cancel
// request is seen at once.
func (m *mailbox) isDeep() bool { return m.oneByOne && m.seesAllCancels() }

// refresh makes the next read query the stream, whatever was republished.
func (m *mailbox) refresh() { m.empty, m.ended = false, false }

// next returns the next message; nil when there is none.
func (m *mailbox) next(ctx context.Context) (*message, error) {
	for {
		if err := m.fill(ctx); err != nil {
			return nil, err
		}
		if len(m.buffer) == 0 {
			err := m.snapshot.Check(ctx)
			if errors.Is(err, store.ErrBehind) {
				m.refresh()
			}
			return nil, err
		}
		first := m.buffer[0]
		m.buffer, m.cursor = m.buffer[1:], first.Sequence+1
		if m.snapshot.Lists(first) {
			return first, nil
		}
	}
}

// fill fills the buffer if there is anything to read.
func (m *mailbox) fill(ctx context.Context) error {
	if s := m.snapshot; s.IsRead() {
		// All entries of the snapshot are read; later ones do not affect which call may start now.
		m.cursor, m.ended, m.snapshot = max(m.cursor, s.Last+1), !m.listens(), nil
	}
	if len(m.buffer) > 0 || m.empty && !m.drainCopies() {
		return nil
	}
	if len(m.buffer) == 0 && !m.ended {
		if err := m.query(ctx); err != nil {
			return err
		}
	}
	if len(m.buffer) == 0 {
		m.empty, m.ended = true, false
	}
	return nil
}

func (m *mailbox) push(found []*message) {
	m.buffer = append(m.buffer, found...)
	m.ended = !m.listens() // without a subscription a query has to follow
}

// query reads from the stream: all messages in one request if the server can, else one message.
func (m *mailbox) query(ctx context.Context) error {
	m.clearLost()
	m.queriedAt = time.Now()
	if !m.oneByOne {
		found, err := m.store.ReadAll(ctx, m.filter())
		if err == nil {
			m.ended = true
			m.buffer = slices.DeleteFunc(found, func(msg *message) bool { return msg.Sequence < m.cursor })
		}
		if m.oneByOne = errors.Is(err, store.ErrNotAtOnce); !m.oneByOne {
			return err
		}
	}
	msg, err := m.store.Next(ctx, m.filter(), m.cursor)
	if err != nil {
		return err
	}
	if m.ended = msg == nil; m.ended {
		m.oneByOne = false
		return nil
	}
	m.buffer = append(m.buffer, msg)
	return nil
}

// drainCopies buffers the republished messages that were not read yet, and reports whether the
// stream may have more.
func (m *mailbox) drainCopies() (ask bool) {
	if !m.checkComplete() {
		m.refresh()
		return true
	}
	news, ask := m.drain(m.cursor)
	m.buffer = append(m.buffer, news...)
	return ask
}

// relisten subscribes again if messages may have been lost.
func (m *mailbox) relisten() {
	if m.listens() && !m.isComplete() {
		m.reset()
	}
	m.listen()
}

func (m *mailbox) filter() string { return wire.MailboxFilter(m.store.Fleet, m.pool, m.hash) }

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
