package lane

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
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

func newMailbox(s *store.Store, pool protocol.Pool, hash protocol.LaneHash) *mailbox {
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

func (m *mailbox) filter() string { return m.store.Fleet.MailboxFilter(m.pool, m.hash) }
