package lane

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// message is one of a mailbox, as it is stored.
type message = jetstream.RawStreamMsg

// mailbox reads the mailbox of a held lane in stream order. It asks a server on its own for all
// that is there at once, and the leader of several, which knows every acknowledged message, for one
// message after the other. While it listens, the server also tells it each message once that is
// stored, so that it need not ask in vain. A server on its own tells all of them in order, and then
// they are taken as they come; in a cluster some may get lost, and then one question finds out
// whether those that came are all there are (republished.go).
//
// One goroutine uses it; what it is told comes from another.
type mailbox struct {
	store  *store.Store
	fleet  protocol.Fleet
	pool   protocol.Pool
	hash   protocol.LaneHash
	cursor uint64 // the next sequence to read; what is before it was read, and never comes again
	// fromStart says that nothing before cursor should be stored any more. Finding
	// the first message is then cheaper than finding one from cursor on. It holds for one read:
	// what that finds is before the next.
	fromStart bool
	empty     bool // the stream had nothing at cursor or after it, and whatever comes is told

	singly int // how many messages are to be read one by one

	sure  []*message          // what is to be read next, in order
	ended bool                // there was nothing behind them when the stream was asked
	read  map[string]struct{} // in a cluster, the subjects of what was read and may still be stored
	prune int                 // as many of them are reason enough to find out which are stored

	subscription *nats.Subscription
	reconnects   uint64 // of the connection, when listening began
	listed       bool   // the requests to cancel that are older than the subscription were listed
	wake         chan struct{}

	mu        sync.Mutex
	told      []*message // stored messages, in order on a server of its own, bounded by maxTold and windowBytes
	toldBytes int
	urgent    bool              // one of them is no call
	lost      bool              // some that were told had no room, or cannot be read
	cancels   []protocol.CallID // calls that somebody asks to cancel
}

// maxTold bounds the messages that wait to be taken; what is more is read from the stream.
const maxTold = 4 * window

func newMailbox(s *store.Store, fleet protocol.Fleet, pool protocol.Pool, hash protocol.LaneHash) *mailbox {
	return &mailbox{store: s, fleet: fleet, pool: pool, hash: hash, wake: make(chan struct{}, 1), prune: readMost}
}

// listen has the server tell what is stored from now on, and reports whether it does. It does
// nothing the second time.
func (m *mailbox) listen() bool {
	if m.subscription != nil {
		return true
	}
	m.reconnects = m.store.NC.Stats().Reconnects
	subscription, err := m.store.NC.Subscribe(m.fleet.ToldFilter(m.pool, m.hash), m.tell)
	if err != nil {
		return false // no connection: there is nothing to hear
	}
	m.subscription, m.listed = subscription, false
	m.refresh() // what came before was not told
	return true
}

// close stops listening.
func (m *mailbox) close() {
	if m.subscription != nil {
		_ = m.subscription.Unsubscribe() // fails only when the connection is closed
		m.subscription = nil
	}
}

// tell takes a message that was stored.
func (m *mailbox) tell(msg *nats.Msg) {
	copied, err := store.FromCopy(msg)
	m.mu.Lock()
	switch {
	case err != nil, m.lost, len(m.told) >= maxTold, m.toldBytes > windowBytes:
		m.lost, m.told, m.toldBytes = true, nil, 0 // the stream has them
	default:
		m.told = append(m.told, copied)
		m.toldBytes += len(copied.Data)
	}
	entry := m.fleet.ParseMailboxSubject(msg.Subject)
	m.urgent = m.urgent || entry.Kind != protocol.EntryCall
	if entry.Kind == protocol.EntryCancel {
		m.cancels = append(m.cancels, entry.CallID)
	}
	m.mu.Unlock()
	m.nudge()
}

// nudge says, from any goroutine, that there may be something to be read.
func (m *mailbox) nudge() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// takeCancels returns the calls that somebody has asked to cancel since the last time.
func (m *mailbox) takeCancels() []protocol.CallID {
	m.mu.Lock()
	defer m.mu.Unlock()
	cancels := m.cancels
	m.cancels = nil
	return cancels
}

// refresh makes the next read ask the stream, whatever was told.
func (m *mailbox) refresh() { m.empty, m.ended = false, false }

// rewind makes the next read begin at a message that was passed.
func (m *mailbox) rewind(seq uint64) {
	m.cursor, m.sure = seq, nil
	m.refresh()
}

// next returns the next message; nil when there is none.
func (m *mailbox) next(ctx context.Context) (*message, error) {
	if m.empty && len(m.sure) == 0 {
		l, ask := m.takeTold()
		if l != nil || !ask {
			return l, nil
		}
		if err := m.makeSure(ctx); err != nil {
			return nil, err
		}
	}
	if len(m.sure) == 0 && !m.ended {
		if err := m.ask(ctx); err != nil {
			return nil, err
		}
	}
	if len(m.sure) == 0 {
		m.empty, m.ended = true, false
		return nil, nil //nolint:nilnil // nothing there is an answer
	}
	first := m.sure[0]
	m.sure = m.sure[1:]
	m.passes(first.Sequence, first.Subject)
	return first, nil
}

// passes books a message as read.
func (m *mailbox) passes(seq uint64, subject string) {
	m.cursor = seq + 1
	if m.store.Clustered() {
		m.knows(subject)
	}
}

// knows has a message that is stored, and will not be read, taken for read.
func (m *mailbox) knows(subject string) {
	if m.read == nil {
		m.read = map[string]struct{}{}
	}
	m.read[subject] = struct{}{}
}

// give hands the mailbox what was read of it in another way: what was there a moment ago, and
// whether that was all.
func (m *mailbox) give(found []*message, whole bool) {
	m.sure = append(m.sure, found...)
	m.ended = whole && m.subscription == nil // else what came meanwhile is not told any more
}

// pagesPay is how many messages may be behind a page for it to cost less than to read each: the
// server counts 100,000 in some 30 ms, and reads one in a tenth of a millisecond.
const pagesPay = 20_000

// ask asks the stream for what is next: for a page, if it can be had at once. To tell how many are
// behind a page the server counts them, so where very many wait they are read one by one until
// as many are read as there were: that costs the same however many there are.
func (m *mailbox) ask(ctx context.Context) error {
	m.forgetLost()
	from := m.cursor
	if m.fromStart {
		m.fromStart = false
		from = 0
	}
	if m.singly > 0 {
		m.singly--
		return m.askOne(ctx, from)
	}
	found, left, err := m.store.Page(ctx, m.filter(), from, window)
	if errors.Is(err, store.ErrNotAtOnce) {
		return m.askOne(ctx, from)
	}
	if err != nil {
		return err
	}
	for _, msg := range found {
		if msg.Sequence >= m.cursor {
			m.sure = append(m.sure, msg)
		}
	}
	if m.ended = left == 0; left > pagesPay {
		m.singly = left
	}
	return nil
}

// askOne asks the stream for the next message.
func (m *mailbox) askOne(ctx context.Context, from uint64) error {
	msg, err := m.store.Next(ctx, m.filter(), from)
	if err == nil && msg != nil && msg.Sequence < m.cursor {
		msg, err = m.store.Next(ctx, m.filter(), m.cursor)
	}
	if err != nil {
		return err
	}
	if m.ended = msg == nil; m.ended {
		m.singly = 0
		return nil
	}
	m.sure = append(m.sure, msg)
	return nil
}

// forgetLost begins anew with what is republished when some of it had no room: the stream is about
// to be asked, which has all that was stored until now.
func (m *mailbox) forgetLost() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.lost {
		m.lost, m.urgent, m.told, m.toldBytes = false, false, nil, 0
	}
}

// takeTold returns the next message that was told, or says that the stream has to be asked.
func (m *mailbox) takeTold() (msg *message, ask bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.told) > 0 && m.told[0].Sequence < m.cursor { // read already
		m.drop()
	}
	if !m.hears() {
		m.stopHearing()
		return nil, true
	}
	if m.lost {
		m.refresh()
		return nil, true
	}
	if len(m.told) == 0 {
		m.urgent = false
		return nil, false
	}
	if m.store.Clustered() {
		return nil, true
	}
	first := m.told[0]
	m.drop()
	m.cursor = first.Sequence + 1
	return first, false
}

func (m *mailbox) drop() {
	m.toldBytes -= len(m.told[0].Data)
	m.told = m.told[1:]
}

// dropBefore forgets what was told with a sequence below seq.
func (m *mailbox) dropBefore(seq uint64) {
	m.told = slices.DeleteFunc(m.told, func(msg *message) bool {
		old := msg.Sequence < seq
		if old {
			m.toldBytes -= len(msg.Data)
		}
		return old
	})
	m.urgent = m.urgent && len(m.told) > 0
}

// hears reports whether everything that is stored is told.
func (m *mailbox) hears() bool {
	if m.subscription == nil || m.store.NC.Stats().Reconnects != m.reconnects {
		return false
	}
	dropped, err := m.subscription.Dropped()
	return err == nil && dropped == 0
}

// knowsCancels reports whether no request to cancel can be stored of which nothing is known.
func (m *mailbox) knowsCancels() bool { return m.listed && m.hears() }

// stopHearing forgets what was told; the lock is held. The next read asks the stream.
func (m *mailbox) stopHearing() {
	m.told, m.toldBytes, m.lost, m.urgent = nil, 0, false, false
	m.close()
	m.refresh()
}

// hearAnew has everything told that is stored from now on.
func (m *mailbox) hearAnew() {
	if m.subscription != nil && !m.hears() {
		m.mu.Lock()
		m.stopHearing()
		m.mu.Unlock()
	}
	m.listen()
}

// look reports whether the stream has anything at all in the mailbox, but for the mark
// that the lane is paused.
func (m *mailbox) look(ctx context.Context) (bool, error) {
	found, err := m.store.ReadAll(ctx, m.filter())
	if errors.Is(err, store.ErrNotAtOnce) {
		var msg *message
		if msg, err = m.store.Next(ctx, m.filter(), 0); m.isPause(msg) {
			msg, err = m.store.Next(ctx, m.filter(), msg.Sequence+1)
		}
		return msg != nil, err
	}
	return slices.ContainsFunc(found, func(msg *message) bool { return !m.isPause(msg) }), err
}

func (m *mailbox) isPause(msg *message) bool {
	return msg != nil && m.fleet.ParseMailboxSubject(msg.Subject).Kind == protocol.EntryPause
}

func (m *mailbox) filter() string { return m.fleet.MailboxFilter(m.pool, m.hash) }
