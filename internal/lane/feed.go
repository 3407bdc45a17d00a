package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/internal/lane/store"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// entry decodes a call. One that cannot be decoded but can be answered is an entry with a fault.
func (l *held) entry(header nats.Header, body []byte) (*core.Entry, error) {
	call, err := protocol.DecodeCall(body)
	if err == nil && call.Lane() != l.lane {
		err = fmt.Errorf("%w: it is of lane %s", protocol.ErrInvalidCall, call.Lane())
	}
	if err == nil {
		e := &core.Entry{Call: call, Header: header, Size: len(body)}
		return e, nil
	}
	id, idErr := protocol.ParseCallID(header.Get(protocol.HeaderCall))
	session, sessionErr := protocol.ParseSessionID(header.Get(protocol.HeaderSession))
	if unanswerable := errors.Join(idErr, sessionErr); unanswerable != nil {
		return nil, errors.Join(err, unanswerable)
	}
	whole := protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}
	call = &protocol.Call{ID: id, SessionID: session, Pool: l.holder.options.Pool, Resources: []protocol.Use{whole}}
	return &core.Entry{Call: call, Header: header, Fault: err}, nil
}

// cancelTold acts on requests to cancel before their turn in the mailbox comes.
func (l *held) cancelTold() {
	for _, id := range l.mail.takeCancels() {
		l.cancelCall(id)
	}
}

// cancelCall cancels a call in hand.
func (l *held) cancelCall(id protocol.CallID) {
	e := l.schedule.Find(id)
	if inline := l.first.inline; e == nil && inline != nil && inline.Call.ID == id {
		e = inline
	}
	if e == nil {
		l.oversight.cancelEarly(id)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Cancelled = true
	l.oversight.refusing = true
	if e.Stop != nil {
		e.Stop(ErrCancelled)
	}
}

// feed reads the mailbox into the schedule until it is empty or the window is full. The first time
// it also makes sure that the ready message is there; the error wraps [errNotReady] when it is not.
func (l *held) feed() error {
	l.throwAway()
	if l.oversight.asked.Load() {
		l.mail.refresh()
	}
	l.mail.fromStart = l.hasReadNothing()
	if err := l.readFirst(); err != nil {
		return err
	}
	if l.first.putOff = l.hasTime(); !l.first.putOff {
		l.first.fed = time.Now()
	}
	for !l.first.putOff && l.schedule.Len() < window && l.bytes < windowBytes {
		msg, err := l.mail.next(l.ctx)
		if err == nil && msg == nil {
			err = l.checkSnapshot()
		}
		if err != nil {
			return err
		}
		if inline := l.first.inline; inline != nil && (msg == nil || msg.Sequence > l.ready.seq) {
			if !l.admit(inline) { // enqueued twice: the copy in the mailbox is the call
				l.first.pinned = false
			}
			l.first.inline = nil
		}
		if msg == nil {
			clear(l.oversight.early) // what it has not met is over
			l.catchUp()
			break
		}
		if !l.first.snapshot.lists(msg) {
			continue
		}
		l.accept(msg)
	}
	return l.readMarks()
}

// errNotReady says that the ready message is gone: whoever held the lane before has removed it, and
// this delivery was an old one.
var errNotReady = errors.New("the ready message is gone")

// readFirst finds out, once, what was there at the claim: whether the ready message is there, and,
// of several servers, what is in the mailbox.
func (l *held) readFirst() error {
	if l.first.checked {
		return nil
	}
	if !l.holder.store.Clustered() {
		return l.readLane()
	}
	if err := l.takeSnapshot(); err != nil {
		return err
	}
	if err := l.readSnapshot(); err != nil {
		return err
	}
	l.first.checked = true
	return nil
}

// readLane makes sure, on a server of its own, that the ready message is there, and reads the
// mailbox with the same question. The result of the ready message's call is looked for meanwhile.
func (l *held) readLane() error {
	s, pool := l.holder.store, l.holder.options.Pool
	if inline := l.first.inline; inline != nil && !l.claim.Interrupted && l.ahead.serves(inline) {
		l.ahead.ask(inline.Call)
	}
	ready, entries, err := s.ReadLane(l.ctx, pool, l.hash)
	many := errors.Is(err, store.ErrNotAtOnce)
	if many {
		ready, err = s.Next(l.ctx, l.holder.options.Fleet.ReadySubject(pool, l.hash), 0)
	}
	if err != nil {
		return err
	}
	if ready == nil || ready.Sequence != l.ready.seq {
		return errNotReady
	}
	if !many {
		l.mail.give(entries, true)
	}
	l.first.checked = true
	return nil
}

// catchUp books that all is read that was there at the claim. What is republished of it later comes
// late: the lane's last holder may have settled it.
func (l *held) catchUp() {
	l.first.caughtUp = true
	if s := l.first.snapshot; s != nil && s.whole {
		l.mail.cursor = max(l.mail.cursor, s.last+1)
	}
}

// hasReadNothing reports whether nothing in the mailbox should have been read before. Then it is
// read from its beginning, which the server finds by the subject; from a place in the middle it
// goes through whatever is stored behind it.
func (l *held) hasReadNothing() bool {
	if l.first.snapshot.marked() || len(l.garbage.marks) > 0 || l.oversight.paused.Load() ||
		slices.ContainsFunc(l.schedule.Entries(), func(e *core.Entry) bool { return !e.Inline }) {
		return false
	}
	return len(l.garbage.seqs) == 0 && time.Since(l.garbage.thrown) > goneAfter
}

// accept takes one message of the mailbox. It may be one that was read before ([mailbox.rewind]).
func (l *held) accept(msg *message) {
	what := l.holder.options.Fleet.ParseMailboxSubject(msg.Subject)
	switch what.Kind {
	case protocol.EntryCall:
		e, err := l.entry(msg.Header, msg.Data)
		if err != nil {
			l.discard(msg, err)
			return
		}
		e.Seq, e.Accepted = msg.Sequence, msg.Time
		if !l.admit(e) && l.schedule.Find(e.Call.ID).Seq != e.Seq { // enqueued twice; the one in hand is the call
			l.garbage.seqs = append(l.garbage.seqs, msg.Sequence)
		}
	case protocol.EntryCancel, protocol.EntryStart:
		e := l.schedule.Find(what.CallID)
		if e == nil { // its call is settled
			l.garbage.seqs = append(l.garbage.seqs, msg.Sequence)
			return
		}
		l.garbage.marks[what.CallID] = append(l.garbage.marks[what.CallID], msg.Sequence)
		if what.Kind == protocol.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.Running {
			e.Starts, e.Marked = max(e.Starts, what.Start), true
		}
	case protocol.EntryFloor: // an earlier holder's, or one's own
		l.garbage.seqs = append(l.garbage.seqs, msg.Sequence)
	case protocol.EntryPause: // it stays where it is
		l.oversight.paused.Store(true)
	case protocol.EntryUnknown:
		l.discard(msg, errUnknownEntry)
	}
}

// discard removes a message that can neither be run nor answered.
func (l *held) discard(msg *message, why error) {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.Subject), slog.Any("error", why))
	l.garbage.seqs = append(l.garbage.seqs, msg.Sequence)
}

// admit puts an entry into the schedule. Only an entry that was there at the claim can have been
// started by a holder that was lost, and only if every call before it that it conflicts with turns
// out to have its result.
func (l *held) admit(e *core.Entry) bool {
	if !l.schedule.Add(e) {
		return false
	}
	l.bytes += e.Size
	if _, cancelled := l.oversight.early[e.Call.ID]; cancelled {
		delete(l.oversight.early, e.Call.ID)
		l.cancelCall(e.Call.ID)
	}
	e.MayHaveStarted = !l.first.caughtUp && l.claim.Interrupted
	l.expects(e)
	return true
}

var errUnknownEntry = errors.New("unknown kind of mailbox entry")
