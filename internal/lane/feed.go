package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/toolfleet/toolfleet/internal/lane/core"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// entry decodes a call that was stored at a time. One that cannot be decoded or is nobody's that is
// known, but can be answered, is an entry with a fault.
func (l *held) entry(header nats.Header, body []byte, stored time.Time) (*core.Entry, error) {
	call, err := protocol.DecodeCall(body)
	if err == nil && (call.Lane() != l.lane || call.Pool != l.holder.options.Pool) {
		err = fmt.Errorf("%w: it is of lane %s in pool %s", protocol.ErrInvalidCall, call.Lane(), call.Pool)
	}
	if keys := l.holder.options.Keys; err == nil && keys != nil {
		if fault := keys.Check(l.holder.options.Fleet, header.Get(protocol.HeaderSigned), body, stored); fault != nil {
			err = fault
		}
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
	what := l.holder.store.Fleet.ParseMailboxSubject(msg.Subject)
	switch what.Kind {
	case protocol.EntryCall:
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
	case protocol.EntryCancel, protocol.EntryStart:
		e := l.schedule.Find(what.CallID)
		if e == nil { // its call is settled
			l.discard(what.CallID, msg.Sequence)
			return
		}
		l.garbage.marks[what.CallID] = append(l.garbage.marks[what.CallID], msg.Sequence)
		if what.Kind == protocol.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.Running {
			e.Starts, e.Marked = max(e.Starts, what.Start), true
		}
	case protocol.EntryFloor: // an earlier holder's, or one's own
		l.discard("", msg.Sequence)
	case protocol.EntryPause: // it stays where it is
		l.marks.paused.Store(true)
	case protocol.EntryUnknown:
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
