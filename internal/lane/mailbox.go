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

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/internal/wire"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// message is one of a mailbox, as it is stored.
type message = jetstream.RawStreamMsg

// mailbox reads the mailbox of a held lane in stream order. It asks a server on its own for all
// that is there at once, and the leader of several, which knows every acknowledged message, for one
// message after the other. While it listens it need not ask in vain. One goroutine uses it.
type mailbox struct {
	listener

	opened   bool            // the ready message was there after the claim
	snapshot *store.Snapshot // of what is believed; nil when all that was there at the claim is read
	caughtUp bool            // what is read from now on came after the claim

	cursor uint64     // the next sequence to read; what is before it was read, and never comes again
	sure   []*message // what is to be read next, in order
	ended  bool       // there was nothing behind them when the stream was asked
	empty  bool       // all was read, and whatever comes is republished
	singly bool       // too much is there to be read at once
	looked time.Time  // when the stream was last asked
}

func newMailbox(s *store.Store, pool protocol.Pool, hash wire.LaneHash) *mailbox {
	return &mailbox{listener: listener{store: s, pool: pool, hash: hash, wake: make(chan struct{}, 1)}}
}

// listen has the server tell what is stored from now on, and reports whether it does. It does
// nothing the second time.
func (m *mailbox) listen() bool {
	if !m.listens() && m.begin() {
		m.refresh() // what came before was not republished
	}
	return m.listens()
}

// isDeep reports whether so much waits that it is read singly, while requests to cancel are heard.
func (m *mailbox) isDeep() bool { return m.singly && m.knowsCancels() }

// refresh makes the next read ask the stream, whatever was republished.
func (m *mailbox) refresh() { m.empty, m.ended = false, false }

// next returns the next message; nil when there is none.
func (m *mailbox) next(ctx context.Context) (*message, error) {
	for {
		if err := m.fill(ctx); err != nil {
			return nil, err
		}
		if len(m.sure) == 0 {
			err := m.snapshot.Check(ctx)
			if errors.Is(err, store.ErrBehind) {
				m.refresh()
			}
			return nil, err
		}
		first := m.sure[0]
		m.sure, m.cursor = m.sure[1:], first.Sequence+1
		if m.snapshot.Lists(first) {
			return first, nil
		}
	}
}

// fill sees to it that something is there to be read, if there is anything.
func (m *mailbox) fill(ctx context.Context) error {
	if s := m.snapshot; s.IsRead() {
		// All that was there is read, and what came since need not be known for what may start now.
		m.cursor, m.ended, m.snapshot = max(m.cursor, s.Last+1), !m.listens(), nil
	}
	if len(m.sure) > 0 || m.empty && !m.takeCopies() {
		return nil
	}
	if len(m.sure) == 0 && !m.ended {
		if err := m.ask(ctx); err != nil {
			return err
		}
	}
	if len(m.sure) == 0 {
		m.empty, m.ended = true, false
	}
	return nil
}

func (m *mailbox) give(found []*message) {
	m.sure = append(m.sure, found...)
	m.ended = !m.listens() // else what came meanwhile is not republished any more
}

// ask asks the stream for what is next: for all that is there, if that can be had at once, else for
// one message after the other until there is none.
func (m *mailbox) ask(ctx context.Context) error {
	m.forgetLost()
	m.looked = time.Now()
	if !m.singly {
		found, err := m.store.ReadAll(ctx, m.filter())
		if err == nil {
			m.ended = true
			m.sure = slices.DeleteFunc(found, func(msg *message) bool { return msg.Sequence < m.cursor })
		}
		if m.singly = errors.Is(err, store.ErrNotAtOnce); !m.singly {
			return err
		}
	}
	msg, err := m.store.Next(ctx, m.filter(), m.cursor)
	if err != nil {
		return err
	}
	if m.ended = msg == nil; m.ended {
		m.singly = false
		return nil
	}
	m.sure = append(m.sure, msg)
	return nil
}

// takeCopies takes what was republished and not read, and reports whether the stream may have more.
func (m *mailbox) takeCopies() (ask bool) {
	if !m.hasAll() {
		m.refresh()
		return true
	}
	news, ask := m.take(m.cursor)
	m.sure = append(m.sure, news...)
	return ask
}

// listenAnew has everything republished that is stored from now on.
func (m *mailbox) listenAnew() {
	if m.listens() && !m.missesNone() {
		m.forget()
	}
	m.listen()
}

func (m *mailbox) filter() string { return wire.MailboxFilter(m.store.Fleet, m.pool, m.hash) }

// entry decodes a call that was stored at a time. One that cannot be decoded or is nobody's that is
// known, but can be answered, is an entry with a fault.
func (l *held) entry(header nats.Header, body []byte, stored time.Time) (*core.Entry, error) {
	call, err := wire.DecodeCall(body)
	if err == nil && (call.Lane() != l.lane || call.Pool != l.holder.options.Pool) {
		err = fmt.Errorf("%w: it is of lane %s in pool %s", protocol.ErrInvalidCall, call.Lane(), call.Pool)
	}
	if keys := l.holder.options.Keys; err == nil && keys != nil {
		if fault := keys.Check(l.holder.options.Fleet, header.Get(wire.HeaderSigned), body, stored); fault != nil {
			err = fault
		}
	}
	if err == nil {
		e := &core.Entry{Call: call, Header: header, Size: len(body)}
		return e, nil
	}
	id, idErr := protocol.ParseCallID(header.Get(wire.HeaderCall))
	session, sessionErr := protocol.ParseSessionID(header.Get(wire.HeaderSession))
	if unanswerable := errors.Join(idErr, sessionErr); unanswerable != nil {
		return nil, errors.Join(err, unanswerable)
	}
	whole := protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}
	call = &protocol.Call{ID: id, SessionID: session, Pool: l.holder.options.Pool, Resources: []protocol.Use{whole}}
	return &core.Entry{Call: call, Header: header, Fault: err}, nil
}

func (l *held) openReady() {
	if len(l.ready.body) == 0 {
		return
	}
	e, err := l.entry(l.ready.header, l.ready.body, l.ready.stored)
	if err != nil {
		l.holder.options.Logger.WarnContext(l.ctx, "ready message holds a call that can neither be run nor answered",
			slog.String("lane", string(l.lane)), slog.Any("error", err))
		return
	}
	e.Seq, e.Accepted, e.Inline = l.ready.seq, l.ready.stored, true
	l.ready.call = e
}

// pinned reports whether the ready message has to stay, because its own call is not settled.
func (l *held) pinned() bool {
	return l.ready.call != nil || l.schedule.Pinned()
}

// feed reads the mailbox into the schedule until it is empty or the window is full. The first time
// it also makes sure that the ready message is there; else the error wraps [store.ErrNotReady].
func (l *held) feed() error {
	if l.garbage.isMuch() {
		if err := l.sweep(); err != nil {
			return err
		}
	}
	if l.marks.asked.Load() || time.Since(l.mail.looked) >= lookPeriod { // a copy may have got lost
		l.mail.refresh()
	}
	if err := l.open(); err != nil {
		return err
	}
	for !l.isFull() {
		msg, err := l.mail.next(l.ctx)
		if err != nil {
			return err
		}
		if inline := l.ready.call; inline != nil && (msg == nil || msg.Sequence > l.ready.seq) {
			l.ready.call = nil
			l.admit(inline) // else it is enqueued twice, and the copy in the mailbox is the call
		}
		if msg == nil {
			clear(l.marks.early) // what they are about is over
			l.mail.caughtUp = true
			break
		}
		l.accept(msg)
	}
	return l.readMarks()
}

func (l *held) isFull() bool {
	return l.schedule.Len() >= window || l.schedule.Bytes() >= windowBytes
}

// open finds out, once, what was there at the claim: whether the ready message is there, and what
// is in the mailbox. The result of the ready message's call is looked for meanwhile.
func (l *held) open() error {
	if l.mail.opened {
		return nil
	}
	if l.ready.call != nil && !l.claim.Interrupted && l.ahead.serves(l.ready.call) {
		l.ahead.ask(l.ready.call.Call)
	}
	found, err := l.holder.store.OpenLane(l.ctx, l.holder.options.Pool, l.hash, l.ready.seq, l.claim.epoch.Load())
	if err != nil {
		return err
	}
	l.mail.opened, l.mail.snapshot, l.mail.singly = true, found.Snapshot, !found.Read
	if found.Read {
		l.mail.give(found.Entries)
	}
	if found.Floor > 0 {
		l.discard("", found.Floor)
	}
	return nil
}

// accept takes one message of the mailbox.
func (l *held) accept(msg *message) {
	what := wire.ParseMailboxSubject(l.holder.store.Fleet, msg.Subject)
	switch what.Kind {
	case wire.EntryCall:
		e, err := l.entry(msg.Header, msg.Data, msg.Time)
		if err != nil {
			l.discardUnread(msg, err)
			return
		}
		e.Seq, e.Accepted = msg.Sequence, msg.Time
		if l.garbage.settled.has(e.Call.ID) {
			l.wasSettled(e)
			l.discard(e.Call.ID, e.Seq)
			return
		}
		if !l.admit(e) && l.schedule.Find(e.Call.ID).Seq != e.Seq { // enqueued twice; the one in hand is the call
			l.discard(what.CallID, msg.Sequence)
		}
	case wire.EntryCancel, wire.EntryStart:
		e := l.schedule.Find(what.CallID)
		if e == nil { // its call is settled
			l.discard(what.CallID, msg.Sequence)
			return
		}
		l.garbage.marks[what.CallID] = append(l.garbage.marks[what.CallID], msg.Sequence)
		if what.Kind == wire.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.Running {
			e.Starts, e.Marked = max(e.Starts, what.Start), true
		}
	case wire.EntryFloor: // an earlier holder's, or one's own
		l.discard("", msg.Sequence)
	case wire.EntryPause: // it stays where it is
		l.marks.paused.Store(true)
	case wire.EntryUnknown:
		l.discardUnread(msg, errUnknownEntry)
	}
}

func (l *held) discardUnread(msg *message, why error) {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.Subject), slog.Any("error", why))
	l.discard("", msg.Sequence)
}

// admit puts an entry into the schedule. Only an entry that was there at the claim can have been
// started by a holder that was lost, and only if every call before it that it conflicts with turns
// out to have its result.
func (l *held) admit(e *core.Entry) bool {
	if !l.schedule.Add(e) {
		return false
	}
	if _, cancelled := l.marks.early[e.Call.ID]; cancelled {
		delete(l.marks.early, e.Call.ID)
		l.cancelCall(e.Call.ID)
	}
	e.MayHaveStarted = !l.mail.caughtUp && l.claim.Interrupted
	e.MayBeOld = l.mail.snapshot.MayBeOld(e.Seq)
	l.expects(e)
	return true
}

var errUnknownEntry = errors.New("unknown kind of mailbox entry")

// listener gets a copy of each message of a mailbox that is stored while it listens, as the server
// republishes it. Where all come, and in order, they are taken as they come; else they only say
// when to ask. One goroutine uses it; copies come from another.
type listener struct {
	store *store.Store
	pool  protocol.Pool
	hash  wire.LaneHash
	wake  chan struct{}

	subscription *nats.Subscription
	reconnects   uint64 // of the connection, when listening began
	listed       bool   // the requests to cancel that are older than the subscription were listed

	mu          sync.Mutex
	copies      []*message // not taken yet, bounded by maxCopies and windowBytes
	copiedBytes int
	lost        bool              // some had no room, or cannot be read
	cancels     []protocol.CallID // calls that somebody asks to cancel
}

// maxCopies bounds the messages that wait to be taken; what is more is read from the stream.
const maxCopies = 4 * window

func (e *listener) listens() bool { return e.subscription != nil }

// begin begins to listen, and reports whether it does: not without a connection.
func (e *listener) begin() bool {
	e.reconnects, e.listed = e.store.NC.Stats().Reconnects, false
	subscription, err := e.store.NC.Subscribe(wire.StoredFilter(e.store.Fleet, e.pool, e.hash), e.receive)
	if err == nil {
		e.subscription = subscription
	}
	return err == nil
}

func (e *listener) close() {
	if e.listens() {
		_ = e.subscription.Unsubscribe() // fails only when the connection is closed
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
	e.nudge()
}

// nudge says, from any goroutine, that there may be something to be read.
func (e *listener) nudge() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *listener) takeCancels() []protocol.CallID {
	e.mu.Lock()
	defer e.mu.Unlock()
	cancels := e.cancels
	e.cancels = nil
	return cancels
}

// take takes what was republished from a sequence on, unless the stream has to be asked for it.
func (e *listener) take(from uint64) (news []*message, ask bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	news = slices.DeleteFunc(e.copies, func(msg *message) bool { return msg.Sequence < from })
	if len(news) == 0 || e.store.Consistency().TellsAll() {
		e.copies, e.copiedBytes = nil, 0
		return news, false
	}
	e.copies, e.copiedBytes = news, 0
	for _, msg := range news {
		e.copiedBytes += len(msg.Data)
	}
	return nil, true
}

// missesNone reports whether everything that is stored is republished to it.
func (e *listener) missesNone() bool {
	if !e.listens() || e.store.NC.Stats().Reconnects != e.reconnects {
		return false
	}
	dropped, err := e.subscription.Dropped()
	return err == nil && dropped == 0
}

// hasAll reports whether no copy is lost. One that misses some is closed.
func (e *listener) hasAll() bool {
	if !e.missesNone() {
		e.forget()
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.lost
}

// knowsCancels reports whether no request to cancel can be stored of which nothing is known.
func (e *listener) knowsCancels() bool { return e.listed && e.missesNone() }

// forgetLost begins anew when something was lost: the stream is about to be asked, which has all
// that was stored until now.
func (e *listener) forgetLost() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		e.lost, e.copies, e.copiedBytes = false, nil, 0
	}
}

func (e *listener) forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.copies, e.copiedBytes, e.lost = nil, 0, false
	e.close()
}
