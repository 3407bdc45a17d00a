package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// entry decodes a call. One that cannot be decoded but can be answered is an entry with a fault.
func (l *held) entry(header nats.Header, body []byte) (*entry, error) {
	call, err := protocol.DecodeCall(body)
	if err == nil && call.Lane() != l.lane {
		err = fmt.Errorf("%w: it is of lane %s", protocol.ErrInvalidCall, call.Lane())
	}
	if err == nil {
		e := &entry{call: call, header: header, size: len(body)}
		if header.Get(protocol.HeaderStarted) != "" {
			e.starts, e.marked = 1, true
		}
		return e, nil
	}
	id, idErr := protocol.ParseCallID(header.Get(protocol.HeaderCall))
	session, sessionErr := protocol.ParseSessionID(header.Get(protocol.HeaderSession))
	if unanswerable := errors.Join(idErr, sessionErr); unanswerable != nil {
		return nil, errors.Join(err, unanswerable)
	}
	whole := protocol.Use{Key: protocol.ResourceKey(l.lane), Access: protocol.Exclusive}
	call = &protocol.Call{ID: id, SessionID: session, Pool: l.holder.options.Pool, Resources: []protocol.Use{whole}}
	return &entry{call: call, header: header, fault: err}, nil
}

// cancelTold acts on requests to cancel before their turn in the mailbox comes.
func (l *held) cancelTold() {
	for _, id := range l.mail.takeCancels() {
		l.cancelCall(id)
	}
}

// cancelCall cancels a call in hand.
func (l *held) cancelCall(id protocol.CallID) {
	e := l.schedule.find(id)
	if e == nil && l.inline != nil && l.inline.call.ID == id {
		e = l.inline
	}
	if e == nil {
		l.oversight.cancelEarly(id)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	e.cancelled = true
	l.oversight.refusing = true
	if e.stop != nil {
		e.stop(ErrCancelled)
	}
}

// feed reads the mailbox into the schedule until it is empty or the window is full.
func (l *held) feed() error {
	l.throwAway()
	if l.oversight.asked.Load() {
		l.mail.refresh()
	}
	l.mail.fromStart = l.hasReadNothing()
	if err := l.takeStock(); err != nil {
		return err
	}
	if err := l.readStock(); err != nil {
		return err
	}
	if l.inline != nil && (l.comesAlone() || l.stock.empty()) {
		l.admit(l.inline)
		l.inline = nil
		l.catchUp()
		return nil
	}
	if l.putOff = l.hasTime(); !l.putOff {
		l.fed = time.Now()
	}
	for !l.putOff && l.schedule.len() < window && l.bytes < windowBytes {
		letter, err := l.mail.next(l.ctx)
		if err == nil && letter == nil {
			err = l.checkStock()
		}
		if err != nil {
			return err
		}
		if l.inline != nil && (letter == nil || letter.seq > l.ready) {
			if !l.admit(l.inline) { // enqueued twice: the copy in the mailbox is the call
				l.pinned = false
			}
			l.inline = nil
		}
		if letter == nil {
			clear(l.oversight.early) // what it has not met is over
			l.catchUp()
			break
		}
		if !l.stock.lists(letter) {
			continue
		}
		l.accept(letter)
	}
	if err := l.readMarks(); err != nil {
		return err
	}
	return l.removeMisleading()
}

// removeMisleading removes handbacks of an earlier count of the deliveries, and returns when they are gone: to whoever takes the lane next
// they would say that this delivery has started nothing.
func (l *held) removeMisleading() error {
	if len(l.misleading) == 0 {
		return nil
	}
	err := l.holder.store.Remove(l.ctx, l.misleading...)
	if err == nil {
		l.misleading = nil
	}
	return err
}

// catchUp books that all is read that was there at the claim. What is told of it later comes late: the lane's last
// holder may have settled it.
func (l *held) catchUp() {
	l.caughtUp = true
	if l.stock != nil && l.stock.whole {
		l.mail.cursor = max(l.mail.cursor, l.stock.last+1)
	}
}

// hasReadNothing reports whether nothing in the mailbox should have been read before. Then it is read
// from its beginning, which the server finds by the subject; from a place in
// the middle it goes through whatever is stored behind it.
func (l *held) hasReadNothing() bool {
	if l.claim.seq > 0 || len(l.marks) > 0 || len(l.handbacks) > 0 || l.oversight.paused.Load() ||
		slices.ContainsFunc(l.schedule.entries, func(e *entry) bool { return !e.inline }) {
		return false
	}
	return len(l.litter) == 0 && time.Since(l.thrown) > goneAfter
}

// comesAlone reports whether the ready message's own call may start without a look into
// the mailbox: nothing was there when it was stored, nobody can have started it
// since, and it is neither cancelled nor is its lane paused.
func (l *held) comesAlone() bool {
	o := l.holder.options
	return l.delivered == 1 && l.doubt == doubtNothing && !l.oversight.asked.Load() &&
		l.inline.header.Get(jetstream.ExpectedLastSubjSeqSubjHeader) == o.Fleet.MailboxFilter(o.Pool, l.hash) &&
		l.holder.alarms.quiet(l.hash, l.ready)
}

// accept takes one message of the mailbox. It may be one that was read before ([mailbox.rewind]).
func (l *held) accept(msg *letter) {
	what := l.holder.options.Fleet.ParseMailboxSubject(msg.subject)
	switch what.Kind {
	case protocol.EntryCall:
		e, err := l.entry(msg.header, msg.body)
		if err != nil {
			l.discard(msg, err)
			return
		}
		e.seq, e.accepted = msg.seq, msg.stored
		if !l.admit(e) && l.schedule.find(e.call.ID).seq != e.seq { // enqueued twice; the one in hand is the call
			l.litter = append(l.litter, msg.seq)
		}
	case protocol.EntryHandback:
		switch {
		case what.Ready != l.ready:
			l.litter = append(l.litter, msg.seq)
			return
		case what.Delivery >= l.delivered: // of an earlier count of the deliveries
			l.misleading = append(l.misleading, msg.seq)
			return
		}
		if !slices.Contains(l.handbacks, msg.seq) {
			l.handbacks = append(l.handbacks, msg.seq)
		}
	case protocol.EntryCancel, protocol.EntryStart:
		e := l.schedule.find(what.CallID)
		if e == nil { // its call is settled
			l.litter = append(l.litter, msg.seq)
			return
		}
		l.marks[what.CallID] = append(l.marks[what.CallID], msg.seq)
		if what.Kind == protocol.EntryCancel {
			l.cancelCall(what.CallID)
		} else if !e.running {
			e.starts, e.marked = max(e.starts, what.Start), true
		}
	case protocol.EntryClaim:
		if msg.seq != l.claim.seq { // of one that was lost
			l.litter = append(l.litter, msg.seq)
		}
	case protocol.EntryPause: // it stays where it is
		l.oversight.paused.Store(true)
	case protocol.EntryUnknown:
		l.discard(msg, errUnknownEntry)
	}
}

// discard removes a message that can neither be run nor answered.
func (l *held) discard(msg *letter, why error) {
	l.holder.options.Logger.ErrorContext(l.ctx, "mailbox entry removed",
		slog.String("lane", string(l.lane)), slog.String("subject", msg.subject), slog.Any("error", why))
	l.litter = append(l.litter, msg.seq)
}

// admit puts an entry into the schedule. Only an entry that was there at the claim
// can have been settled or started by whoever held the lane before; started only
// if every call before it that it conflicts with turns out to have its result.
func (l *held) admit(e *entry) bool {
	if !l.schedule.add(e) {
		return false
	}
	l.bytes += e.size
	l.expects(e)
	if _, cancelled := l.oversight.early[e.call.ID]; cancelled {
		delete(l.oversight.early, e.call.ID)
		l.cancelCall(e.call.ID)
	}
	if !l.caughtUp {
		e.maySettled = l.delivered > 1 || l.doubt != doubtNothing
		e.mayHaveStarted = l.delivered > 1 || l.doubt == doubtStarted // until a call before it turns out to have had no result
	}
	return true
}

// startedBefore reports whether an earlier delivery of the ready message may have started calls:
// deliveries that were handed back did not.
func (l *held) startedBefore() bool {
	return l.doubt == doubtStarted || l.delivered-1 > uint64(len(l.handbacks))
}

// settledBefore reports whether an earlier delivery may have settled calls that are still there.
func (l *held) settledBefore() bool { return l.doubt != doubtNothing || l.startedBefore() }

var errUnknownEntry = errors.New("unknown kind of mailbox entry")
